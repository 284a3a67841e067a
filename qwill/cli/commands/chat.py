"""`qwill chat`: a conversation in the terminal, or line by line from standard input."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.conversation import Conversation, Message
from qwill.cli.flags import AnswerFlags, ChatFlags, Model, check_given, flags_of, picked
from qwill.cli.load import load_model
from qwill.cli.paths import make_folder, state_folder
from qwill.cli.reader import LineReader, Reader, TerminalReader, history_in
from qwill.cli.slash import Leave, as_message, completions, run_slash_command
from qwill.cli.talk import Talk
from qwill.cli.terminal import ask, can_redraw, is_terminal, keys_held_back, notice, show_cursor
from qwill.cli.view import view_for
from qwill.errors import ModelNotFoundError, QwillError
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from prompt_toolkit.history import History

    from qwill.llm import LLM

__all__ = ["converse", "new_talk", "register"]

EXIT_INTERRUPTED = 130

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(AnswerFlags, SamplingParams, EngineSettings, ChatFlags)


def register(app: App) -> None:
    """Make `qwill chat` of this app."""
    app.default(chat)


def chat(model: Model | None = None, *, given: Flags | None = None) -> int:
    """Talk with a model; without a name, with the first one of the catalog that is on this machine.

    When standard input is no terminal, each of its lines is one question.
    """
    given = given or {}
    check_given(given, AnswerFlags, SamplingParams, EngineSettings)
    with load_model(model or _default_model(), given) as llm:
        talk = new_talk(llm, given)
        return converse(talk, _reader(talk, given))


def _default_model() -> str:
    from qwill.hub import resolve
    from qwill.hub.catalog import CATALOG
    from qwill.hub.progress import format_bytes

    for name in (name for name, entry in CATALOG.items() if not entry.included):  # a toy only where it is asked for
        try:
            resolve(name, offline=True)
        except ModelNotFoundError:
            continue
        return name
    entry = next(iter(CATALOG.values()))
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        size = format_bytes(entry.bytes)
        if ask(f"No model is on this machine yet. Download {entry.name} ({size})?", default=True):
            return entry.name
    raise ModelNotFoundError(
        "no model of the catalog is on this machine", hint=f"qwill pull {entry.name}; qwill chat tiny opens a toy"
    )


def count_prompt(llm: LLM, messages: list[Message], think: bool | None) -> int:
    """Tokens of the prompt that the model's chat template makes of `messages`."""
    from qwill.chat import render_chat

    return len(render_chat(llm.tokenizer, messages, enable_thinking=think).token_ids)


def new_talk(llm: LLM, given: dict[str, Any]) -> Talk:
    """A conversation with `llm`, set up by the flags."""
    conversation = Conversation(given.get("system"), given.get("think"), picked(given, SamplingParams))
    talk = Talk(
        llm,
        conversation,
        new_view=lambda: view_for(sys.stdout, sys.stderr, markdown=given.get("markdown", True)),
        tell=notice,
        count_prompt=lambda messages: count_prompt(llm, messages, conversation.think),
        sessions=state_folder() / "sessions",
    )
    talk.stats = bool(given.get("stats") or given.get("verbose"))
    talk.stream = given.get("stream", True)
    talk.raw_special = given.get("raw_special", False)
    return talk


def _reader(talk: Talk, given: dict[str, Any]) -> Reader:
    if not (is_terminal(sys.stdin) and can_redraw(sys.stdout)):
        return LineReader(sys.stdin)
    llm = talk.llm
    if not given.get("quiet"):
        about = f"{llm.name} · {llm.dtype} · {llm.threads} threads · context {llm.max_model_len}"
        talk.tell(f"{about} · /help for commands")
    return TerminalReader(_history(given), lambda text: completions(talk, text), talk.tell)


def _history(given: dict[str, Any]) -> History:
    """Typed lines, kept where that is wanted and possible."""
    if not given.get("history", True):
        return history_in(None)
    folder = state_folder()
    try:
        return history_in(make_folder(folder))
    except QwillError as error:
        notice(f"typed lines are not kept: {error.what} ({error.where})")
    except OSError as error:
        notice(f"typed lines are not kept: {error.strerror} ({folder / 'history'})")
    return history_in(None)


def converse(talk: Talk, reader: Reader) -> int:
    """Read, answer, and so on to the end of the input; return the exit code.

    Raises:
        QwillError: only when nobody is there to read it and go on.
    """
    while True:
        try:
            text = reader.read()
            finished = not text.strip() or _respond(talk, text)
            if not finished and not reader.interactive:
                return EXIT_INTERRUPTED
        except (EOFError, Leave):
            return 0
        except KeyboardInterrupt:  # between two answers, or a second one while the first was being dealt with
            if not reader.interactive:
                raise
            show_cursor()
        except QwillError as error:
            if not reader.interactive:
                raise
            notice(f"error: {error}")


def _respond(talk: Talk, text: str) -> bool:
    """Do what the text asks; False when Ctrl-C cut the answer off."""
    message = as_message(text)
    before = talk.last
    with keys_held_back():
        if message is None:
            run_slash_command(talk, text)
        else:
            talk.say(message)
    return talk.last is before or talk.last is None or not talk.last.interrupted
