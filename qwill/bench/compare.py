"""The comparison: our decoding and others', on exactly equal work, or a refusal that says what is unequal.

Same model file, prompt token ids, number format, threads and number of new tokens for all; greedy, with end-of-text
ignored; each contestant in a process of its own, one after the other, with one whole unmeasured run first. Token ids
must be equal. In float32 any difference is an error. In bfloat16 and float16, where equal formulas round differently,
a difference at a near tie is reported in the result, and any other is an error. llama.cpp computes a GGUF file in
number formats of its own; its differences are reported and never an error.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qwill.bench.machine import warm_page_cache
from qwill.bench.occasion import Occasion
from qwill.bench.process import Worker, worker_command
from qwill.bench.results import Group, Measurement, Row
from qwill.bench.target import Target, find_target
from qwill.bench.trial import Entrant, take_turn
from qwill.errors import BenchmarkError, SettingError
from qwill.hub.progress import Progress, SilentProgress
from qwill.settings import EngineSettings, check_settings, setting

__all__ = ["CompareSettings", "Entrant", "compare", "entrants"]


@dataclass(frozen=True)
class CompareSettings:
    """How much work is compared. The model's own settings (dtype, threads, source …) are `EngineSettings`."""

    prompt_tokens: int = setting(32, "length of the prompt", unit="tokens", low=1, high=2**20)
    new_tokens: int = setting(128, "new tokens of those that decode with a cache", unit="tokens", low=2, high=2**20)
    new_tokens_without_cache: int = setting(
        16, "new tokens of the group without a cache, for all of it; 0 leaves it out", unit="tokens", low=0, high=2**20
    )
    repeats: int = setting(3, "measured runs of each; the median counts", low=3, high=100)
    quick: bool = setting(False, "one group only, with few new tokens for all")
    peer: str | None = setting(None, "one more contestant", choices=("llamacpp",))

    def __post_init__(self) -> None:
        check_settings(self)
        if self.new_tokens_without_cache == 1 or (self.quick and self.new_tokens_without_cache == 0):
            raise SettingError(
                f"new_tokens_without_cache = {self.new_tokens_without_cache}: decoding starts with the second token",
                hint="allowed: 2 or more; 0 leaves the group out, but not with quick",
            )


def entrants(peer: str | None = None) -> list[Entrant]:
    """Everybody who takes part, in the order of the table. transformers with its cache is the reference."""
    known = [
        Entrant(name, label, worker_command(name), uses_cache="no-cache" not in name)
        for name, label in (
            ("qwill-no-cache", "qwill, no cache"),
            ("qwill", "qwill"),
            ("transformers-no-cache", "transformers, no cache"),
            ("transformers", "transformers"),
        )
    ]
    if peer == "llamacpp":
        known.append(Entrant("llamacpp", "llama.cpp", worker_command("llamacpp"), own_numerics=True))
    return known


def compare(
    model: str,
    settings: CompareSettings | None = None,
    engine: EngineSettings | None = None,
    *,
    progress: Progress | None = None,
    among: Sequence[Entrant] | None = None,
) -> Measurement:
    """Compare everybody on one model. `model` is any name that LLM takes, or `random:qwen3-0.6b`.

    The first entrant called "transformers", else the first that uses a cache, is the reference for token ids.

    Raises:
        BenchmarkError: unequal work, unequal token ids, or a contestant that failed.
        QwillError: the model cannot be found or fetched.
    """
    settings, engine = settings or CompareSettings(), engine or EngineSettings()
    progress = progress or SilentProgress()
    field = _check_installed(entrants(settings.peer)) if among is None else list(among)
    occasion = Occasion.now("compare", model, settings, engine)
    plan = _plan(settings)
    size = {"prompt_tokens": settings.prompt_tokens, "new_tokens": max(plan), "count": settings.repeats + 1}
    target = find_target(model, engine, progress, **size)
    if settings.peer == "llamacpp" and target.path.suffix != ".gguf":
        raise BenchmarkError("llama.cpp reads GGUF files only", where=str(target.path), hint="give a .gguf model")
    warm_page_cache(target.path)
    plans = {entrant: [n for n in plan if _takes_part(entrant, n, settings)] for entrant in field}
    bandwidth, rows = _run_all({entrant: each for entrant, each in plans.items() if each}, target, progress)
    groups = [
        Group(settings.prompt_tokens, n, [rows[entrant.name][n] for entrant in field if n in plans[entrant]])
        for n in reversed(plan)
    ]
    return occasion.measured(target, groups, read_bandwidth=bandwidth, notes=_notes(groups, field))


def _run_all(
    plans: Mapping[Entrant, list[int]], target: Target, progress: Progress
) -> tuple[float, dict[str, dict[int, Row]]]:
    """The read bandwidth, and each entrant's rows by its name. The reference runs first."""
    order = sorted(plans, key=lambda entrant: entrant is not _reference(list(plans)))
    steps = sum(1 + len(plan) * len(target.prompts) for plan in plans.values())
    rows: dict[str, dict[int, Row]] = {}
    progress.start(1 + steps, "compare", unit="steps")
    try:
        with Worker(order[0].command, label="read bandwidth", threads=target.setup.threads) as worker:
            bandwidth = float(worker.ask("read_bandwidth", threads=target.setup.threads))
        progress.advance(1, "read bandwidth measured")
        for entrant in order:

            def step(what: str, label: str = entrant.label) -> None:
                progress.advance(1, f"{label}: {what}")

            rows[entrant.name] = take_turn(entrant, target, plans[entrant], rows.get(order[0].name, {}), step=step)
    finally:
        progress.finish()
    return bandwidth, rows


def _reference(field: Sequence[Entrant]) -> Entrant:
    """Whose token ids all others must meet: transformers with its cache, or the first that may be one."""
    usable = [entrant for entrant in field if not entrant.own_numerics] or list(field)
    named = [entrant for entrant in usable if entrant.name == "transformers"]
    return (named or [entrant for entrant in usable if entrant.uses_cache] or usable)[0]


def _notes(groups: Sequence[Group], field: Sequence[Entrant]) -> list[str]:
    """What a reader must know to judge this table, every difference of token ids included."""
    notes = []
    if any(entrant.own_numerics for entrant in field):
        notes.append("llama.cpp keeps the file's quantized weights; the others compute on their dequantized values")
    notes += [
        f"{row.label}, {group.new_tokens} new tokens: token ids part at {row.difference}"
        for group in groups
        for row in group.rows
        if row.difference is not None
    ]
    return notes


def _plan(settings: CompareSettings) -> list[int]:
    """Numbers of new tokens, one per group, the smallest first."""
    small = settings.new_tokens_without_cache
    return [small] if settings.quick else sorted({small, settings.new_tokens} - {0})


def _takes_part(entrant: Entrant, new_tokens: int, settings: CompareSettings) -> bool:
    return entrant.uses_cache or new_tokens == settings.new_tokens_without_cache


def _check_installed(field: list[Entrant]) -> list[Entrant]:
    """Refuse before anything slow begins when a peer's package is missing."""
    needs = {"transformers": "qwill[bench]", "accelerate": "qwill[bench]", "gguf": "qwill[bench]"}
    if any(entrant.name == "llamacpp" for entrant in field):
        needs["xllamacpp"] = "qwill[llamacpp]"
    for package, extra in needs.items():
        if importlib.util.find_spec(package) is None:
            raise BenchmarkError(f"{package} is not installed", hint=f"pip install '{extra}'")
    return field
