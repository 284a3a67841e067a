"""Each native op by itself, at the shapes of Qwen3-0.6B: how long it takes, and how near that is to the limit.

One token (decoding) is limited by reading memory: weights and cached keys are laid out many times over, so that they
come from memory and not from a cache, and the speed is told as a share of the read bandwidth measured just before.
Many tokens (a prompt) are limited by arithmetic. Calls are recorded and replayed, as the model does when it decodes.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from qwill.bench.machine import machine_facts, read_bandwidth
from qwill.bench.results import SCHEMA, Spread, spread
from qwill.errors import BenchmarkError
from qwill.hub.progress import Progress, SilentProgress
from qwill.settings import check_settings, setting

if TYPE_CHECKING:
    from qwill.bench.kernel_cases import Case
    from qwill.ops.native import NativeOps

__all__ = ["KernelMeasurement", "KernelSettings", "Timing", "as_record", "measure"]


@dataclass(frozen=True)
class KernelSettings:
    """How much is measured."""

    prompt_tokens: int = setting(512, "tokens of a prompt's step", unit="tokens", low=2, high=2**16)
    context: int = setting(4096, "tokens that decoding looks back over", unit="tokens", low=1, high=2**17)
    op_seconds: float = setting(0.3, "time spent on each op", unit="seconds", low=0.001, high=60.0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Timing:
    """What one call of an op takes."""

    op: str
    weights: str
    tokens: int
    seconds: Spread
    bytes_per_second: float
    operations_per_second: float | None
    share_of_read_bandwidth: float | None


@dataclass(frozen=True)
class KernelMeasurement:
    """Timings of all ops, and where they were taken."""

    isa: str
    threads: int
    started: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    read_bandwidth: float
    """Bytes per second."""
    settings: dict[str, Any]
    timings: list[Timing]


def as_record(measured: KernelMeasurement) -> dict[str, Any]:
    """Everything as plain data for JSON."""
    return {"schema": SCHEMA, "benchmark": "kernels", **asdict(measured)}


def measure(
    settings: KernelSettings | None = None, threads: int | None = None, *, progress: Progress | None = None
) -> KernelMeasurement:
    """Time every native op.

    Raises:
        BenchmarkError: there are no native ops here.
    """
    from qwill.bench.kernel_cases import cases
    from qwill.ops.backend import native_ops, why_no_native_ops

    settings, progress = settings or KernelSettings(), progress or SilentProgress()
    ops = native_ops()
    if ops is None:
        raise BenchmarkError("there are no native ops to measure", where=why_no_native_ops(), hint="see `qwill doctor`")
    started, machine = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), machine_facts()
    if threads is not None:
        ops.set_threads(threads)
    bandwidth = read_bandwidth(ops.threads)
    makers = cases(ops, settings.prompt_tokens, settings.context)
    timings = []
    progress.start(len(makers), "measure", unit="ops")
    try:
        for make in makers:
            case = make()
            timings.append(_timing(ops, case, settings.op_seconds, bandwidth))
            progress.advance(1, f"{case.op} {case.weights}")
    finally:
        progress.finish()
    return KernelMeasurement(ops.isa, ops.threads, started, machine, bandwidth, asdict(settings), timings)


def _timing(ops: NativeOps, case: Case, seconds: float, bandwidth: float) -> Timing:
    with ops.record() as recording:
        for i in range(case.copies):
            case.run(i)
    each = spread(time / case.copies for time in _times(lambda: recording.program.run(ops.pool), seconds))
    speed = case.nbytes / each.median
    return Timing(
        case.op,
        case.weights,
        case.tokens,
        seconds=each,
        bytes_per_second=speed,
        operations_per_second=case.operations / each.median if case.operations else None,
        share_of_read_bandwidth=speed / bandwidth if case.uncached else None,
    )


def _times(work: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of at least three runs; goes on until `seconds` are over."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times
