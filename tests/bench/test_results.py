"""What is derived from raw repeats, against formulas worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.results import (
    Difference,
    Group,
    Measurement,
    Row,
    Run,
    as_record,
    first_difference,
    settings_record,
    spread,
    write_record,
)
from qwill.settings import EngineSettings


def run(first: float, step: float, ids: tuple[int, ...] = (5, 6, 7, 8, 9)) -> Run:
    return Run(10, list(ids), [first + step * i for i in range(len(ids))])


def row(name: str, *runs: Run, **more: Any) -> Row:
    return Row(name, name, 0.5, 2**20, "float32", 1, {}, weight_bytes=1000, runs=list(runs), **more)


def measured(*rows: Row, new_tokens: int = 5) -> Measurement:
    groups = [Group(10, new_tokens, list(rows))]
    return Measurement("compare", "m", "qwen3", 7, "float32", 1, "now", {}, 1e6, {}, groups)


def test_speeds_of_one_run() -> None:
    one = run(0.25, 0.125)
    assert (one.time_to_first_token, one.prefill_speed, one.decode_speed) == (0.25, 40.0, 8.0)


def test_the_first_and_last_time_are_enough() -> None:
    assert Run(10, [1, 2, 3, 4, 5], [0.5, 1.0]).decode_speed == 8.0


def test_a_single_new_token_has_no_decode_speed() -> None:
    assert Run(10, [1], [0.5]).decode_speed == 0.0


def test_spread_is_median_and_range() -> None:
    both = spread([3.0, 1.0, 10.0])
    assert (both.median, both.low, both.high) == (3.0, 1.0, 10.0)
    assert spread([1.0, 2.0]).median == 1.5


def test_the_ratio_is_of_medians() -> None:
    ours, theirs = row("qwill", run(1, 0.1), run(1, 0.05), run(1, 0.2)), row("transformers", run(1, 0.25))
    group = Group(10, 5, [ours, theirs])
    assert group.ratio(ours) == pytest.approx(2.5)
    assert Group(10, 5, [ours]).ratio(ours) is None


def test_read_speed_is_weights_times_decode_speed() -> None:
    assert row("qwill", run(1, 0.125)).read_speed == 8000.0
    record = as_record(measured(row("qwill", run(1, 0.125))))["groups"][0]["rows"][0]
    assert record["share_of_read_bandwidth"] == 0.008


@pytest.mark.parametrize(
    ("others", "place"),
    [([(1, 2, 3), (4, 5, 6)], None), ([(1, 2, 3), (4, 9, 6)], (1, 1)), ([(9, 2, 3), (9, 5, 6)], (0, 0))],
)
def test_first_difference(others: list[tuple[int, ...]], place: tuple[int, int] | None) -> None:
    mine = [run(1, 1, ids) for ids in [(1, 2, 3), (4, 5, 6)]]
    assert first_difference(mine, [run(1, 1, ids) for ids in others]) == place


def test_a_difference_says_where_and_by_how_much() -> None:
    difference = Difference(1, 36, 11, 12, (3.0, 3.5), near_tie=False)
    assert difference.gap == 0.5
    assert str(difference) == "new token 37 of repeat 2: id 12 instead of 11; its logits 3.5 and 3, not a near tie"


def test_a_record_keeps_every_repeat_and_reads_back(tmp_path: Path) -> None:
    record = as_record(measured(row("qwill", run(0.1, 0.2), run(0.3, 0.4)), row("transformers", run(0.5, 0.6))))
    write_record(record, tmp_path / "new" / "record.json")
    text = (tmp_path / "new" / "record.json").read_text()
    assert json.loads(text) == record
    assert '"token_ids": [5, 6, 7, 8, 9]' in text
    assert len(record["groups"][0]["rows"][0]["runs"]) == 2


def test_a_prefill_only_record_has_no_decode_numbers() -> None:
    only = as_record(measured(row("qwill", Run(10, [1], [0.5])), new_tokens=1))["groups"][0]["rows"][0]
    assert only["decode_tokens_per_second"] is None
    assert only["prefill_tokens_per_second"]["median"] == 20.0


def test_the_address_of_a_mirror_is_not_recorded() -> None:
    record = settings_record(EngineSettings(endpoint="https://user:secret@mirror.example"))
    assert "endpoint" not in record
    assert record["dtype"] == "auto"
