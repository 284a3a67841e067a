"""The numbers of a comparison, and what is derived from them. Measures nothing and shows nothing."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "Difference",
    "Group",
    "Measurement",
    "Row",
    "Run",
    "Spread",
    "as_record",
    "first_difference",
    "settings_record",
    "spread",
    "write_record",
]

SCHEMA = 1
"""Version of the JSON layout."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some repeats."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """The spread of at least one value."""
    listed = list(values)
    return Spread(statistics.median(listed), min(listed), max(listed))


@dataclass(frozen=True)
class Run:
    """One repeat: new token ids, and the seconds from the start until each id was known (or the first and last)."""

    prompt_tokens: int
    token_ids: list[int]
    seconds: list[float]

    @property
    def time_to_first_token(self) -> float:
        """Seconds."""
        return self.seconds[0]

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second, up to the first new token."""
        return self.prompt_tokens / self.seconds[0]

    @property
    def decode_speed(self) -> float:
        """New tokens per second after the first; 0 where there is no second."""
        span = self.seconds[-1] - self.seconds[0]
        return (len(self.token_ids) - 1) / span if span > 0 else 0.0


@dataclass(frozen=True)
class Difference:
    """Where a contestant's token ids first part from the reference's.

    `logits` are the contestant's own for (expected, got) after the same tokens; None where it does not tell.
    """

    repeat: int
    position: int
    """0 is the first new token."""
    expected: int
    got: int
    logits: tuple[float, float] | None
    near_tie: bool

    @property
    def gap(self) -> float | None:
        """By how much the contestant preferred its own token."""
        return None if self.logits is None else self.logits[1] - self.logits[0]

    def __str__(self) -> str:
        place = f"new token {self.position + 1} of repeat {self.repeat + 1}: id {self.got} instead of {self.expected}"
        if self.logits is None:
            return f"{place}; it does not tell its logits"
        kind = "a near tie" if self.near_tie else "not a near tie"
        return f"{place}; its logits {self.logits[1]:.4g} and {self.logits[0]:.4g}, {kind}"


@dataclass(frozen=True)
class Row:
    """One contestant's numbers for one amount of work."""

    name: str
    label: str
    load_seconds: float
    peak_rss: int
    """Bytes."""
    dtype: str
    threads: int
    versions: dict[str, str]
    weight_bytes: int
    """Bytes of weights that one decode step has to read."""
    runs: list[Run]
    difference: Difference | None = None

    @property
    def time_to_first_token(self) -> Spread:
        """Seconds."""
        return spread(run.time_to_first_token for run in self.runs)

    @property
    def prefill_speed(self) -> Spread:
        """Tokens per second."""
        return spread(run.prefill_speed for run in self.runs)

    @property
    def decode_speed(self) -> Spread:
        """Tokens per second."""
        return spread(run.decode_speed for run in self.runs)

    @property
    def read_speed(self) -> float:
        """Bytes of weights read per second while decoding."""
        return self.weight_bytes * self.decode_speed.median


@dataclass(frozen=True)
class Group:
    """Rows that did exactly the same work."""

    prompt_tokens: int
    new_tokens: int
    rows: list[Row]

    def ratio(self, row: Row, name: str = "transformers") -> float | None:
        """A row's decode speed over that of another contestant; None without it."""
        base = next((other.decode_speed.median for other in self.rows if other.name == name), 0.0)
        return row.decode_speed.median / base if base else None


@dataclass(frozen=True)
class Measurement:
    """What was measured, on what, and where; the head of every record. `groups` have equal work each."""

    benchmark: str
    """"compare", "decode" or "prefill"."""
    model: str
    architecture: str
    parameters: int
    dtype: str
    threads: int
    started: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    read_bandwidth: float
    """Bytes per second that this machine's memory was seen to deliver."""
    settings: dict[str, Any]
    groups: list[Group]
    notes: list[str] = field(default_factory=list)


def as_record(measured: Measurement) -> dict[str, Any]:
    """Everything as plain data for JSON: raw repeats, and the figures that the table shows."""
    record = asdict(measured)
    for group, plain in zip(measured.groups, record["groups"], strict=True):
        plain["rows"] = [_row_record(group, row, measured.read_bandwidth) for row in group.rows]
    return {"schema": SCHEMA, **record}


def settings_record(*owners: Any) -> dict[str, Any]:
    """The settings of several dataclasses in one mapping; not the mirror's address, which may hold a password."""
    merged = {name: value for owner in owners for name, value in asdict(owner).items()}
    return {name: value for name, value in merged.items() if name != "endpoint"}


def _row_record(group: Group, row: Row, read_bandwidth: float) -> dict[str, Any]:
    decodes = group.new_tokens > 1
    return {
        **asdict(row),
        "runs": [{**asdict(run), "seconds": [round(second, 6) for second in run.seconds]} for run in row.runs],
        "token_ids_equal": row.difference is None,
        "difference_gap": row.difference.gap if row.difference else None,
        "time_to_first_token_seconds": asdict(row.time_to_first_token),
        "prefill_tokens_per_second": asdict(row.prefill_speed),
        "decode_tokens_per_second": asdict(row.decode_speed) if decodes else None,
        "decode_ratio_to_transformers": group.ratio(row),
        "read_bytes_per_second": row.read_speed if decodes else None,
        "share_of_read_bandwidth": row.read_speed / read_bandwidth if decodes else None,
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write JSON with one line per list of numbers, so that it can be read and compared line by line."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([-+.\deE,\s]+?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def first_difference(expected: Sequence[Run], got: Sequence[Run]) -> tuple[int, int] | None:
    """(repeat, position) of the first token id that differs; None when all are equal."""
    for repeat, (one, other) in enumerate(zip(expected, got, strict=True)):
        for position, (wanted, found) in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
            if wanted != found:
                return repeat, position
    return None
