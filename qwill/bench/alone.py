"""qwill's own speed, compared with nothing: prompts of some lengths, each with some new tokens.

Runs in a process of its own, as in a comparison, so that its peak of memory is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from qwill.bench.machine import warm_page_cache
from qwill.bench.occasion import Occasion
from qwill.bench.process import Worker, worker_command
from qwill.bench.results import Group, Measurement, Row
from qwill.bench.target import Target, find_target
from qwill.bench.trial import run_once
from qwill.errors import SettingError
from qwill.hub.progress import Progress, SilentProgress
from qwill.settings import EngineSettings

__all__ = ["check_lengths", "measure_alone"]


def check_lengths(prompt_tokens: object) -> None:
    """Refuse what is no tuple of 1 … 16 lengths.

    Raises:
        SettingError: says what is allowed.
    """
    good = isinstance(prompt_tokens, tuple) and 1 <= len(prompt_tokens) <= 16
    if not good or not all(type(n) is int and 1 <= n <= 2**20 for n in prompt_tokens):  # type: ignore[attr-defined]
        raise SettingError(f"prompt_tokens = {prompt_tokens!r:.100}", hint="1 … 16 lengths of 1 … 1048576 tokens")


def measure_alone(
    occasion: Occasion,
    engine: EngineSettings,
    work: Mapping[int, int],
    repeats: int,
    *,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Measurement:
    """Measure qwill on one model. `work` has the number of new tokens for each length of the prompt.

    Raises:
        BenchmarkError: the lengths do not fit into the model's context, or the process failed.
        QwillError: the model cannot be found or fetched.
    """
    progress = progress or SilentProgress()
    size = {"prompt_tokens": max(work), "new_tokens": max(work.values()), "count": repeats + 1}
    target = find_target(occasion.model, engine, progress, **size)
    warm_page_cache(target.path)
    progress.start(2 + len(work) * len(target.prompts), "measure", unit="steps")
    try:
        with Worker(command or worker_command("qwill"), label="qwill", threads=target.setup.threads) as worker:
            setup = replace(target.setup, dtype=engine.dtype, quant=engine.quant)
            groups = _groups(worker, target, asdict(setup), work, progress)
        with Worker(command or worker_command("qwill"), label="read bandwidth", threads=target.setup.threads) as worker:
            bandwidth = float(worker.ask("read_bandwidth", threads=target.setup.threads))
        progress.advance(1, "read bandwidth measured")
    finally:
        progress.finish()
    return occasion.measured(target, groups, read_bandwidth=bandwidth)


def _groups(
    worker: Worker, target: Target, setup: dict[str, Any], work: Mapping[int, int], progress: Progress
) -> list[Group]:
    """One group of one row for each length of the prompt."""
    loaded = worker.ask("load", setup=setup)
    progress.advance(1, "loaded")
    groups = []
    for length, new_tokens in work.items():
        runs = []
        for number, prompt in enumerate(target.prompts):
            runs.append(run_once(worker, prompt[:length], new_tokens))
            progress.advance(1, f"prompt of {length}: " + (f"run {number}" if number else "warm-up"))
        row = Row(
            name="qwill",
            label="qwill",
            load_seconds=loaded["seconds"],
            peak_rss=worker.ask("peak_rss"),
            dtype=loaded["dtype"],
            threads=loaded["threads"],
            versions=loaded["versions"],
            weight_bytes=loaded["weight_bytes"] or target.weight_bytes,
            runs=runs[1:],
        )
        groups.append(Group(length, new_tokens, [row]))
    return groups
