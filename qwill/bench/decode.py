"""Our own speed: how fast prompts of some lengths are computed, and how fast tokens follow.

Runs in a process of its own, as in a comparison, so that its peak of memory is its own. Compares nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from qwill.bench.machine import machine_facts, warm_page_cache
from qwill.bench.notes import general_notes
from qwill.bench.process import Worker, worker_command
from qwill.bench.results import Group, Measurement, Row, settings_record
from qwill.bench.target import Target, find_target
from qwill.bench.trial import run_once
from qwill.errors import SettingError
from qwill.hub.progress import Progress, SilentProgress
from qwill.settings import EngineSettings, check_settings, setting

__all__ = ["DecodeSettings", "measure"]


@dataclass(frozen=True)
class DecodeSettings:
    """How much is measured. The model's own settings (dtype, threads, source …) are `EngineSettings`."""

    prompt_tokens: tuple[int, ...] = setting((32, 512, 2048), "lengths of the prompts", unit="tokens")
    new_tokens: int = setting(128, "new tokens after the shortest prompt", unit="tokens", low=2, high=2**20)
    repeats: int = setting(3, "measured runs of each; the median counts", low=3, high=100)

    def __post_init__(self) -> None:
        check_settings(self)
        good = isinstance(self.prompt_tokens, tuple) and 1 <= len(self.prompt_tokens) <= 16
        if not good or not all(type(n) is int and 1 <= n <= 2**20 for n in self.prompt_tokens):
            raise SettingError(
                f"prompt_tokens = {self.prompt_tokens!r:.100}", hint="1 … 16 lengths of 1 … 1048576 tokens"
            )


def measure(
    model: str,
    settings: DecodeSettings | None = None,
    engine: EngineSettings | None = None,
    *,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Measurement:
    """Measure qwill on one model. `model` is any name that LLM takes, or `random:qwen3-0.6b`.

    Raises:
        BenchmarkError: the lengths do not fit into the model's context, or the process failed.
        QwillError: the model cannot be found or fetched.
    """
    settings, engine = settings or DecodeSettings(), engine or EngineSettings()
    progress = progress or SilentProgress()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = machine_facts()
    lengths = sorted(set(settings.prompt_tokens))
    size = {"prompt_tokens": lengths[-1], "new_tokens": settings.new_tokens, "count": settings.repeats + 1}
    target = find_target(model, engine, progress, **size)
    warm_page_cache(target.path)
    work = {length: settings.new_tokens if length == lengths[0] else 1 for length in lengths}
    progress.start(2 + len(work) * len(target.prompts), "measure", unit="steps")
    try:
        with Worker(command or worker_command("qwill"), label="qwill", threads=target.setup.threads) as worker:
            groups = _groups(worker, target, work, progress)
        with Worker(command or worker_command("qwill"), label="read bandwidth", threads=target.setup.threads) as worker:
            bandwidth = float(worker.ask("read_bandwidth", threads=target.setup.threads))
        progress.advance(1, "read bandwidth measured")
    finally:
        progress.finish()
    return Measurement(
        benchmark="decode",
        model=model,
        architecture=target.config.architecture,
        parameters=target.parameters,
        dtype=target.setup.dtype,
        threads=target.setup.threads,
        started=started,
        machine=machine,
        read_bandwidth=bandwidth,
        settings=settings_record(settings, engine),
        groups=groups,
        notes=general_notes(machine, target.setup.dtype),
    )


def _groups(worker: Worker, target: Target, work: dict[int, int], progress: Progress) -> list[Group]:
    """One group of one row for each length of the prompt."""
    loaded = worker.ask("load", setup=asdict(target.setup))
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
            weight_bytes=target.weight_bytes,
            runs=runs[1:],
        )
        groups.append(Group(length, new_tokens, [row]))
    return groups
