"""One contestant's turn: load, warm up, measure, and check that it did exactly what was asked.

Knows one contestant at a time and, once there is one, the reference whose token ids must be met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qwill.bench.process import Worker
from qwill.bench.results import Difference, Row, Run, first_difference
from qwill.bench.target import Target
from qwill.errors import BenchmarkError

__all__ = ["Entrant", "run_once", "take_turn"]

NEAR_TIE_STEPS = 4
"""Two logits at most this many rounding steps apart are a near tie."""
STEP = {"bfloat16": 2**-7, "float16": 2**-10}
"""Largest relative distance of neighbouring numbers."""


@dataclass(frozen=True)
class Entrant:
    """A contestant as the comparison sees it. `command` starts a worker that speaks worker.py's protocol."""

    name: str
    label: str
    command: tuple[str, ...]
    uses_cache: bool = True
    own_numerics: bool = False
    """Computes in number formats of its own, so that equal token ids cannot be asked for."""


def take_turn(
    entrant: Entrant,
    target: Target,
    plan: Sequence[int],
    reference: Mapping[int, Row],
    *,
    step: Callable[[str], None] = lambda _: None,
) -> dict[int, Row]:
    """Run one contestant for each number of new tokens in `plan`, rising. `step` is told of each thing done.

    Raises:
        BenchmarkError: it failed, did other work than was asked for, or chose other tokens than the reference.
    """
    setup = target.setup
    rows = {}
    with Worker(entrant.command, label=entrant.label, threads=setup.threads) as worker:
        loaded = worker.ask("load", setup=asdict(setup))
        _check_loaded(entrant, target, loaded)
        step("loaded")
        for new_tokens in plan:
            runs = []
            for number, prompt in enumerate(target.prompts):
                runs.append(run_once(worker, prompt, new_tokens))
                step(f"run {number}" if number else "warm-up")
            rows[new_tokens] = Row(
                name=entrant.name,
                label=entrant.label,
                load_seconds=loaded["seconds"],
                peak_rss=worker.ask("peak_rss"),
                dtype=loaded["dtype"],
                threads=loaded["threads"],
                versions=loaded["versions"],
                weight_bytes=target.file_weight_bytes if entrant.own_numerics else target.weight_bytes,
                runs=runs[1:],
                difference=_difference(worker, entrant, target, runs[1:], reference.get(new_tokens)),
            )
    return rows


def _check_loaded(entrant: Entrant, target: Target, loaded: Mapping[str, Any]) -> None:
    """Refuse a contestant that did not take the number format or the threads that all others have."""
    wanted: dict[str, Any] = {"threads": target.setup.threads}
    if not entrant.own_numerics:
        wanted["dtype"] = target.setup.dtype
    for what, value in wanted.items():
        if loaded[what] != value:
            raise BenchmarkError(
                f"unequal work: {entrant.label} runs with {what} = {loaded[what]}, the comparison with {value}",
                hint="a comparison needs the same for everybody",
            )


def run_once(worker: Worker, prompt: Sequence[int], new_tokens: int) -> Run:
    """One generation.

    Raises:
        BenchmarkError: it failed, or gave another number of tokens than was asked for.
    """
    done = worker.ask("generate", prompt_token_ids=prompt, new_tokens=new_tokens)
    run = Run(len(prompt), done["token_ids"], done["seconds"])
    given = len(run.token_ids)
    if given != new_tokens:
        raise BenchmarkError(f"unequal work: {worker.label} gave {given} new tokens instead of {new_tokens}")
    if len(run.seconds) not in (2, new_tokens) or run.seconds != sorted(run.seconds) or run.seconds[0] <= 0:
        raise BenchmarkError(f"{worker.label}: its times are not those of {new_tokens} tokens in order")
    return run


def _difference(
    worker: Worker, entrant: Entrant, target: Target, runs: Sequence[Run], reference: Row | None
) -> Difference | None:
    """Where the token ids first part from the reference's; an error unless rounding explains it."""
    place = first_difference(reference.runs, runs) if reference else None
    if place is None or reference is None:
        return None
    repeat, position = place
    got, expected = runs[repeat].token_ids, reference.runs[repeat].token_ids[position]
    before = [*target.prompts[1 + repeat], *got[:position]]
    logits = worker.ask("logits", token_ids=before, wanted=[expected, got[position]])
    near = logits is not None and _near_tie(*logits, dtype=target.setup.dtype)
    found = Difference(repeat, position, expected, got[position], tuple(logits) if logits else None, near)
    if not (near or entrant.own_numerics):
        raise BenchmarkError(
            f"{entrant.label} does not choose the tokens that {reference.label} chooses",
            where=str(found),
            hint="in float32 equal formulas give equal tokens, so one of the two is wrong"
            if target.setup.dtype == "float32"
            else "rounding cannot explain this; run it again with dtype=float32 to see which of the two is wrong",
        )
    return found


def _near_tie(one: float, other: float, *, dtype: str) -> bool:
    """Whether rounding in `dtype` can turn the order of two logits round; never in float32."""
    return abs(one - other) <= NEAR_TIE_STEPS * STEP.get(dtype, 0.0) * max(abs(one), abs(other)) and dtype in STEP
