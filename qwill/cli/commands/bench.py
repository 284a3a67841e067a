"""`qwill bench`, with a command for each thing to measure: wired to qwill.bench, which does all the measuring."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.bench.compare import CompareSettings
from qwill.bench.decode import DecodeSettings
from qwill.bench.kernels import KernelSettings
from qwill.bench.prefill import PrefillSettings
from qwill.bench.workload import ServeSettings
from qwill.cli.flags import BenchFlags, Model, Part, ResultFlags, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.paths import check_may_write
from qwill.cli.terminal import print_json
from qwill.errors import UsageError
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.bench.results import Measurement

__all__ = ["register"]

if TYPE_CHECKING:
    CompareChoices = dict[str, Any]
    DecodeChoices = dict[str, Any]
    PrefillChoices = dict[str, Any]
    ServeChoices = dict[str, Any]
    KernelChoices = dict[str, Any]
else:
    CompareChoices = flags_of(CompareSettings, EngineSettings, BenchFlags)
    DecodeChoices = flags_of(DecodeSettings, EngineSettings, BenchFlags)
    PrefillChoices = flags_of(PrefillSettings, EngineSettings, BenchFlags)
    ServeChoices = flags_of(ServeSettings, EngineSettings, ResultFlags)
    KernelChoices = flags_of(KernelSettings, Part(EngineSettings, ("threads",)), ResultFlags)


def register(app: App) -> None:
    """Make `qwill bench` of this app."""
    app.help = (
        "Measure speed, and compare with transformers. MODEL may also be random:qwen3-0.6b, which needs no download."
    )
    app.command(compare)
    app.command(decode)
    app.command(prefill)
    app.command(serve_offline)
    app.command(kernels)


def compare(model: Model, *, given: CompareChoices | None = None) -> int:
    """Compare with transformers, each with and without a cache, on exactly equal work; refuses what is not equal."""
    from qwill.bench.compare import compare as measure

    given = given or {}
    _check_files(given)
    settings, engine = _made(given, CompareSettings), _made(given, EngineSettings)
    _tell(measure(model, settings, engine, progress=progress_for(given)), given)
    return 0


def decode(model: Model, *, given: DecodeChoices | None = None) -> int:
    """Measure qwill alone: how fast prompts of some lengths are computed, and how fast tokens follow."""
    from qwill.bench.decode import measure

    given = given or {}
    _check_files(given)
    settings, engine = _made(given, DecodeSettings), _made(given, EngineSettings)
    _tell(measure(model, settings, engine, progress=progress_for(given)), given)
    return 0


def prefill(model: Model, *, given: PrefillChoices | None = None) -> int:
    """Measure qwill alone: how fast prompts are computed."""
    from qwill.bench.prefill import measure

    given = given or {}
    _check_files(given)
    settings, engine = _made(given, PrefillSettings), _made(given, EngineSettings)
    _tell(measure(model, settings, engine, progress=progress_for(given)), given)
    return 0


def serve_offline(model: Model, *, given: ServeChoices | None = None) -> int:
    """Measure many requests at once: throughput, latency, and where the time of a step goes."""
    from qwill.bench.serve_offline import measure, record_of
    from qwill.bench.serving_report import print_serving

    given = given or {}
    check_may_write(given.get("output"))
    settings, engine = _made(given, ServeSettings), _made(given, EngineSettings)
    measured = measure(model, settings, engine, progress=progress_for(given))
    _tell_all(record_of(measured), lambda: print_serving(measured, sys.stdout), given)
    return 0


def kernels(*, given: KernelChoices | None = None) -> int:
    """Measure each native op by itself, at the shapes of Qwen3-0.6B, against what memory gives."""
    from qwill.bench.kernel_report import print_kernels
    from qwill.bench.kernels import as_record, measure

    given = given or {}
    check_may_write(given.get("output"))
    measured = measure(_made(given, KernelSettings), given.get("threads"), progress=progress_for(given))
    _tell_all(as_record(measured), lambda: print_kernels(measured, sys.stdout), given)
    return 0


def _check_files(given: dict[str, Any]) -> None:
    """Refuse files that cannot be written before anything is measured."""
    from qwill.bench.report import CHART_KINDS

    if given.get("chart") and Path(given["chart"]).suffix not in CHART_KINDS:
        raise UsageError(f"cannot draw a chart as {given['chart']!r:.100}", hint="end it in " + ", ".join(CHART_KINDS))
    check_may_write(given.get("output"), given.get("chart"))


def _made(given: dict[str, Any], owner: type[Any]) -> Any:
    return owner(**picked(given, owner))


def _tell(measured: Measurement, given: dict[str, Any]) -> None:
    """The table or JSON on stdout, and the files that were asked for."""
    from qwill.bench.report import print_report, write_chart
    from qwill.bench.results import as_record

    _tell_all(as_record(measured), lambda: print_report(measured, sys.stdout), given)
    if given.get("chart"):
        write_chart(measured, Path(given["chart"]))


def _tell_all(record: dict[str, Any], show: Callable[[], None], given: dict[str, Any]) -> None:
    """What `show` prints, or JSON, on stdout; and the file that was asked for."""
    from qwill.bench.results import write_record

    if given.get("json"):
        print_json(record)
    else:
        show()
    if given.get("output"):
        write_record(record, Path(given["output"]))
