"""`qwill eval kl`: wired to qwill.eval, which does all the measuring."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import FETCHING, EvalFlags, Model, Part, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.paths import check_may_write
from qwill.cli.terminal import print_json
from qwill.errors import UsageError
from qwill.eval.settings import KLSettings
from qwill.eval.texts import EvalText, read_text
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.eval.quality import Quality
    from qwill.hub.progress import Progress

__all__ = ["register"]

EXIT_INTERRUPTED = 130
COMPUTING = Part(EngineSettings, ("quant", "dtype", "kv_dtype", "device", "threads", "max_model_len", *FETCHING.names))

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(KLSettings, COMPUTING, EvalFlags)


def register(app: App) -> None:
    """Make `qwill eval` of this app."""
    app.help = "Measure quality: how far a quantized model is from the unquantized one."
    app.command(kl)


def kl(model: Model, *, given: Flags | None = None) -> int:
    """KL divergence, agreement and perplexity over a text; --max-model-len (512 here) is the length of its windows."""
    given = given or {}
    check_may_write(given.get("output"))
    settings, engine = KLSettings(**picked(given, KLSettings)), EngineSettings(**picked(given, COMPUTING))
    quality = _measured(model, _text(given), settings, engine, progress_for(given))
    _tell(quality, given)
    return EXIT_INTERRUPTED if quality.interrupted else 0


def _text(given: dict[str, Any]) -> EvalText:
    if not given.get("text"):
        raise UsageError("there is no text to evaluate on", hint="--text FILE; scripts/eval_text.py fetches two")
    return read_text(Path(given["text"]))


def _measured(model: str, text: EvalText, settings: KLSettings, engine: EngineSettings, progress: Progress) -> Quality:
    """Names that are mistyped, and hubs that cannot be reached, are told before torch is imported."""
    from qwill.hub import resolve

    for name in filter(None, (model, settings.baseline)):
        resolve(name, progress=progress, **{field: getattr(engine, field) for field in FETCHING.names})
    from qwill.eval.kl import measure

    return measure(model, text, settings, engine, progress=progress)


def _tell(quality: Quality, given: dict[str, Any]) -> None:
    """The numbers on stdout, as lines or JSON, and the file that was asked for."""
    from qwill.bench.results import write_record
    from qwill.eval.quality import as_record
    from qwill.eval.report import print_report

    if given.get("json"):
        print_json(as_record(quality))
    else:
        print_report(quality, sys.stdout)
    if given.get("output"):
        write_record(as_record(quality), Path(given["output"]))
