"""Where the user's lines come from: a terminal with editing, history and completion, or standard input.

Knows nothing of models. A text of several lines stands between two lines of triple quotes, or is pasted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from qwill.errors import PromptError

__all__ = ["LineReader", "Reader", "SlashCompleter", "TerminalReader", "history_in"]

QUOTES = '"""'


class Reader(Protocol):
    """Gives the user's next text."""

    interactive: bool
    """Whether a person is typing."""

    def read(self) -> str:
        """The next text; EOFError when the user has left or the input has ended."""


class LineReader:
    """One line, or one block in triple quotes, at a time from a stream that is no terminal."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._number = 0

    def read(self) -> str:
        """The next line or block.

        Raises:
            EOFError: the input has ended.
            PromptError: the input is not UTF-8.
        """
        text = self._line()
        while _is_open(text):
            text += "\n" + self._line()
        return _unquoted(text)

    def _line(self) -> str:
        try:
            self._number += 1
            line = self._stream.buffer.readline().decode("utf-8")  # whatever the locale says
        except UnicodeDecodeError as error:
            raise PromptError("standard input is not UTF-8 text", where=f"line {self._number}") from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


class TerminalReader:
    """Typed lines: Enter sends, Ctrl+J or Alt+Enter begins a new line, pasted text never sends itself.

    `complete` gives what may follow a text, `tell` says one remark to the user.
    """

    interactive = True

    def __init__(self, history: History, complete: Callable[[str], list[str]], tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._session: PromptSession[str] = PromptSession(
            ">>> ",
            history=history,
            completer=SlashCompleter(complete),
            complete_while_typing=False,
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation=lambda _width, _line, _wrapped: "... ",
        )

    def read(self) -> str:
        """The next text.

        Raises:
            EOFError: Ctrl-D, or Ctrl-C twice at an empty prompt.
        """
        asked = False
        while True:
            try:
                return _unquoted(self._session.prompt())
            except KeyboardInterrupt:
                if asked:
                    raise EOFError from None
                asked = True
                self._tell("Ctrl-C again, or Ctrl-D, to leave")


def history_in(folder: Path | None) -> History:
    """Typed lines kept in `folder`, readable by the user alone; None keeps them only until the end."""
    if folder is None:
        return InMemoryHistory()
    path = folder / "history"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.chmod(path, 0o600)
    return FileHistory(path)


def _is_open(text: str) -> bool:
    """Whether a block in triple quotes has begun and not ended."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def _unquoted(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(QUOTES) and not _is_open(stripped):
        return stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


class SlashCompleter(Completer):
    """Completes a slash command and what follows it; ordinary text is left alone."""

    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The possible lines, each in place of what is typed."""
        del complete_event
        typed = document.text_before_cursor
        if typed.startswith("/"):
            yield from (Completion(line, start_position=-len(typed)) for line in self._complete(typed))


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer: Buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("c-j")
    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-c")
    def _clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings
