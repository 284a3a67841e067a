"""What reaches a terminal: no control characters, tables in line whatever the script, questions answered."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from qwill.cli.terminal import (
    ask,
    can_redraw,
    console_for,
    harmless,
    is_terminal,
    keys_held_back,
    notice,
    print_json,
    print_table,
    show_cursor,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text(), st.text())
def test_no_control_character_is_left_and_pieces_add_up(one: str, two: str) -> None:
    shown = harmless(one + two)
    assert {c for c in shown if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
    assert shown == harmless(one) + harmless(two)
    assert harmless(shown) == shown


def test_ordinary_text_is_untouched_and_escapes_are_made_visible() -> None:
    text = "héllo 你好 👩‍👩‍👧 שלום\n\tإلى"
    assert harmless(text) == text
    assert harmless("\x1b[31mred\x1b]0;x\x07\x9b2J\r\n") == "␛[31mred␛]0;x␇\ufffd2J\n"
    assert harmless("a\u202eb\u2066c") == "abc"


def test_streams_that_nobody_looks_at_are_no_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(closed)
    assert not is_terminal(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert is_terminal(Terminal())
    assert not can_redraw(Terminal())


def test_a_notice_is_dimmed_only_where_colour_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = {}
    for name, stream in {"terminal": Terminal(), "pipe": io.StringIO()}.items():
        notice("hi \x1b[0m", stream)
        shown[name] = stream.getvalue()
    assert shown == {"terminal": "\x1b[2mhi ␛[0m\x1b[0m\n", "pipe": "hi ␛[0m\n"}
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    notice("hi", quiet)
    assert quiet.getvalue() == "hi\n"


def test_the_cursor_is_brought_back_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, expected in ((Terminal(), "\x1b[?25h"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stdout", stream)
        show_cursor()
        assert stream.getvalue() == expected


def test_a_console_reads_no_markup_and_writes_no_colour_to_a_pipe() -> None:
    pipe = io.StringIO()
    console_for(pipe).print("[bold]:smile: 12[/bold]")
    assert pipe.getvalue() == "[bold]:smile: 12[/bold]\n"


def test_columns_stand_in_line_for_wide_characters_too() -> None:
    out = io.StringIO()
    print_table(["名", "size"], [["模型模型", "1"], ["x\x1b", "22"]], out)
    lines = out.getvalue().splitlines()
    starts = {cell_len(line[: line.rindex(last)]) for line, last in zip(lines, ("size", "1", "22"), strict=True)}
    assert starts == {10}
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("typed", "default", "expected"),
    [("\n", True, True), ("\n", False, False), ("y\n", False, True), ("n\n", True, False), ("", True, False)],
)
def test_a_question_takes_its_default_for_an_empty_line_but_not_for_the_end_of_input(
    typed: str, default: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert ask("sure?", default=default) is expected


def test_holding_keys_back_does_nothing_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with keys_held_back():
        pass


def test_json_holds_nothing_that_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "\x1b[2J \x7f \u009b2J \u202e 你好"}
    print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert "你好" in out
    assert not {"\x1b", "\x7f", "\u009b", "\u202e"} & {*out}
