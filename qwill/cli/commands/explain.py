"""`qwill explain`: one answer as one HTML page. All that is looked at, and the page, is made by qwill.report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from qwill.cli.commands.run import check_template_flags, prompt_from
from qwill.cli.flags import AnswerFlags, ExplainFlags, Model, Part, check_given, flags_of, picked
from qwill.cli.load import load_model
from qwill.cli.paths import check_may_write
from qwill.cli.terminal import harmless, notice, print_json
from qwill.errors import QwillError
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.llm import LLM
    from qwill.report import Report

__all__ = ["register"]

PROMPT = Part(AnswerFlags, ("system", "think", "raw_special"))

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(ExplainFlags, PROMPT, SamplingParams, EngineSettings)


def register(app: App) -> None:
    """Make `qwill explain` of this app."""
    app.default(explain)


def explain(
    model: Model,
    *prompt: Annotated[str, Parameter(help="the prompt; standard input, if any, follows it after a blank line")],
    given: Flags | None = None,
) -> int:
    """Show what happens inside while a prompt is answered, as one HTML file that works offline: tokens, probabilities,
    logit lens, attention, cache, time, weights. The answer is short: --max-tokens is 48 here.
    """
    given = given or {}
    check_given(given, AnswerFlags, SamplingParams, EngineSettings)
    check_template_flags(given)
    path = Path(given.get("output") or "report.html")
    check_may_write(str(path))
    text = prompt_from(prompt, sys.stdin)
    start = time.monotonic()
    with load_model(model, given) as llm:
        report = _report(llm, text, given)
    size = _saved(report, path)
    _tell(report, path, size, time.monotonic() - start, given)
    return 0


def _report(llm: LLM, text: str, given: dict[str, Any]) -> Report:
    from qwill.bench.machine import read_bandwidth
    from qwill.report import ANSWER_TOKENS
    from qwill.report import explain as look_inside

    def say(what: str) -> None:
        if not given.get("quiet"):
            notice(what)

    params = llm.params(**{"max_tokens": ANSWER_TOKENS, **picked(given, SamplingParams)})
    say("measuring how fast memory is")
    return look_inside(
        llm,
        text,
        params,
        **{name: value for name, value in given.items() if name in ("raw", "system", "think", "raw_special")},
        read_bandwidth=read_bandwidth(llm.threads),
        say=say,
    )


def _saved(report: Report, path: Path) -> int:
    try:
        return report.save(path)
    except OSError as error:
        raise QwillError(f"the report cannot be written: {error.strerror}", where=str(path)) from error


def _tell(report: Report, path: Path, size: int, seconds: float, given: dict[str, Any]) -> None:
    """The file's name on stdout, for a program that opens it; the rest on stderr, or everything as JSON."""
    if given.get("json"):
        print_json({"report": str(path), "bytes": size, **report.as_record(), "seconds": round(seconds, 2)})
        return
    print(harmless(str(path)))
    if not given.get("quiet"):
        notice(f"{size / 1e6:.1f} MB in {seconds:.1f} s; open it in a browser")
