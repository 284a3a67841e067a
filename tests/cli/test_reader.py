"""Where lines come from: standard input with blocks, and typed keys through a real prompt_toolkit session."""

from __future__ import annotations

import io
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from qwill.cli.reader import LineReader, SlashCompleter, TerminalReader, history_in
from qwill.errors import PromptError

Typing = Callable[[str], list[str]]


def lines(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    reader, found = LineReader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")), []
    while True:
        try:
            found.append(reader.read())
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one\ntwo", ["one", "two"]),
        ("one\r\n\r\n你好\n", ["one", "", "你好"]),
        ('"""\na\n\nb\n"""\nnext\n', ["a\n\nb", "next"]),
        ('"""a"""\n', ["a"]),
        ('"""a\nb"""\n', ["a\nb"]),
        ('say """ twice\n', ['say """ twice']),
        ('"""never closed\n', []),
    ],
)
def test_standard_input_gives_lines_and_blocks(text: str, expected: list[str]) -> None:
    assert lines(text) == expected


def test_input_that_is_no_text_is_refused() -> None:
    with pytest.raises(PromptError, match="UTF-8"):
        lines(b"\xff\xfe\n")


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        yield keyboard


def typed(keyboard: PipeInput, keys: str, told: list[str] | None = None) -> list[str]:
    """What a reader gives for these keys, until it says that the user has left."""
    reader = TerminalReader(InMemoryHistory(), lambda _: [], (told or []).append)
    keyboard.send_text(keys + "\x04")
    found = []
    while True:
        try:
            found.append(reader.read())
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("hello\r", ["hello"]),
        ("你好\rtwo\r", ["你好", "two"]),
        ("a\nb\r", ["a\nb"]),  # Ctrl+J
        ("a\x1b\rb\r", ["a\nb"]),  # Alt+Enter
        ('"""\ra\r\rb"""\r', ["a\n\nb"]),
        ("\x1b[200~a\r\nb\n\x1b[201~c\r", ["a\nb\nc"]),  # a paste, then a typed letter
        ("half\x03whole\r", ["whole"]),  # Ctrl-C takes away what is typed
        ("\r", [""]),
    ],
)
def test_keys_do_what_people_expect(keyboard: PipeInput, keys: str, expected: list[str]) -> None:
    assert typed(keyboard, keys) == expected


def test_ctrl_c_at_an_empty_prompt_asks_once_and_then_leaves(keyboard: PipeInput) -> None:
    told: list[str] = ["start"]
    assert typed(keyboard, "a\r\x03\x03", told) == ["a"]
    assert told[1:] == ["Ctrl-C again, or Ctrl-D, to leave"]


def test_tab_completes_what_begins_with_a_slash_and_nothing_else() -> None:
    completer = SlashCompleter(lambda text: [text + "et", text + "how"])
    for typed_so_far, expected in (("/s", ["/set", "/show"]), ("s", []), ("a /s", [])):
        found = completer.get_completions(Document(typed_so_far), CompleteEvent())
        assert [typed_so_far[: len(typed_so_far) + c.start_position] + c.text for c in found] == expected


def test_history_is_the_user_s_alone_and_survives_garbage(tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(b"\xff\xfe garbage\n+\x00\n")
    history = history_in(tmp_path)
    history.store_string("hello\nworld")
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600
    assert next(iter(history_in(tmp_path).load_history_strings())) == "hello\nworld"
    assert isinstance(history_in(None), InMemoryHistory)
