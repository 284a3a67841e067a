"""`qwill run`: one prompt, one answer. The answer goes to stdout, all else to stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import App, Parameter

from qwill.cli.flags import AnswerFlags, Model, RunFlags, check_given, flags_of, picked
from qwill.cli.load import load_model
from qwill.cli.reply import View, as_record, play, stats_line
from qwill.cli.terminal import is_terminal, notice, print_json
from qwill.errors import PromptError, UsageError
from qwill.outputs import StreamEvent
from qwill.sampling_params import MAX_GRAMMAR_BYTES, SamplingParams, StructuredOutputsParams
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.llm import LLM

__all__ = ["answer_once", "check_template_flags", "events_of", "prompt_from", "register", "schema_from"]

MAX_PROMPT_BYTES = 16 << 20
WAIT_SECONDS = 3.0
EXIT_INTERRUPTED = 130


if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(AnswerFlags, SamplingParams, EngineSettings, RunFlags)


def register(app: App) -> None:
    """Make `qwill run` of this app."""
    app.default(run)


def run(
    model: Model,
    *prompt: Annotated[str, Parameter(help="the prompt; standard input, if any, follows it after a blank line")],
    given: Flags | None = None,
) -> int:
    """Answer one prompt. The answer goes to stdout, progress, thinking and statistics to stderr."""
    given = given or {}
    check_given(given, AnswerFlags, SamplingParams, EngineSettings)
    check_template_flags(given)
    text = prompt_from(prompt, sys.stdin)
    if given.get("json_schema") is not None:
        given = {**given, "structured_outputs": schema_from(given["json_schema"])}
    with load_model(model, given) as llm:
        return answer_once(llm, text, given)


def check_template_flags(given: dict[str, Any]) -> None:
    """Refuse what only a chat template could do, where there is none.

    Raises:
        UsageError: --raw is given with --system or --think.
    """
    if given.get("raw") and (given.get("system") or given.get("think") is not None):
        raise UsageError("--raw has no chat template, so it goes with neither --system nor --think")


def prompt_from(words: tuple[str, ...], stdin: TextIO | None) -> str:
    """The words joined by spaces, and what comes on standard input after a blank line.

    Raises:
        PromptError: nothing was given, or the input is too large or not UTF-8.
    """
    parts = [" ".join(words), "" if stdin is None or is_terminal(stdin) else _read_all(stdin)]
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise PromptError("the prompt is empty", hint='qwill run MODEL "your question", or give it on standard input')
    return text


def _read_all(stdin: TextIO) -> str:
    """All of standard input. One that nobody closes looks like a hang, so after a while we say what we wait for."""
    remark = "waiting for standard input to end (if there is none: </dev/null)"
    waiting = threading.Timer(WAIT_SECONDS, notice, [remark])
    waiting.daemon = True
    waiting.start()
    try:
        data = stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    finally:
        waiting.cancel()
    if len(data) > MAX_PROMPT_BYTES:
        raise PromptError(f"standard input has more than {MAX_PROMPT_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError("standard input is not UTF-8 text", where=f"byte {error.start}") from error


def schema_from(path: str) -> StructuredOutputsParams:
    """The setting that --json-schema stands for.

    Raises:
        UsageError: the file cannot be read, or holds no JSON schema.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_GRAMMAR_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the JSON schema: {error}", where=path) from error
    return StructuredOutputsParams(json=text)


def answer_once(llm: LLM, text: str, given: dict[str, Any]) -> int:
    """Stream the answer of `llm`; return the exit code."""
    events = events_of(llm, text, given)
    as_json = given.get("json", False)
    reply = play(events, _Nowhere() if as_json else _view(llm, given), stream=given.get("stream", True))
    if as_json:
        print_json(as_record(reply))
    if given.get("stats") or (given.get("verbose") and not given.get("quiet")):
        notice(stats_line(reply))
    return EXIT_INTERRUPTED if reply.interrupted else 0


def events_of(llm: LLM, text: str, given: dict[str, Any], **options: Any) -> Iterator[StreamEvent]:
    """The answer of `llm`, as a chat or as the prompt continued; `options` are those of `LLM.stream`.

    Raises:
        UsageError: a flag needs a chat template, and the model has none. Others: see `LLM.stream`.
    """
    params = llm.params(**picked(given, SamplingParams))
    if given.get("raw") or llm.tokenizer.chat_template is None:
        if not given.get("raw") and (given.get("system") or given.get("think") is not None):
            raise UsageError("this model has no chat template, so --system and --think have no meaning for it")
        if not given.get("raw") and not given.get("quiet"):
            notice("this model has no chat template: the prompt is continued as it is")
        return llm.stream(text, params, raw_special=given.get("raw_special", False), **options)
    system = [{"role": "system", "content": given["system"]}] if given.get("system") else []
    return llm.stream_chat(
        [*system, {"role": "user", "content": text}],
        params,
        enable_thinking=given.get("think"),
        raw_special=given.get("raw_special", False),
        **options,
    )


def _view(llm: LLM, given: dict[str, Any]) -> View:
    from qwill.cli.view import view_for

    laid_out = given.get("markdown", True) and not given.get("raw") and llm.tokenizer.chat_template is not None
    return view_for(sys.stdout, sys.stderr, markdown=laid_out)


class _Nowhere:
    """For --json: the answer is shown when it is whole."""

    def thinking(self, text: str, tokens: int) -> None:
        """Nothing."""

    def content(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
