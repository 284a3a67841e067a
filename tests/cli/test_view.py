"""How an answer looks: on a pipe untouched, on a terminal laid out, and nothing finished is drawn again.

The screen is worked out by a few lines here from the cursor movements in the output.
"""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from qwill.cli import view as view_module
from qwill.cli.view import PlainView, TerminalView, view_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(output: str) -> list[str]:
    """The lines that stand there at the end: all that was written, with what was erased again taken away."""
    lines, row = [""], 0
    for text, control in re.findall(r"([^\x1b\n\r]+)|(\x1b\[[0-9;?]*[A-Za-z]|\n|\r)", output):
        if text:
            lines[row] += text
        elif control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif control.endswith("K"):
            lines[row] = ""
        elif control.endswith("A"):
            row -= int(control[2:-1] or 1)
            assert row >= 0
    return [line.rstrip() for line in lines]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setattr(view_module, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(view_module, "PAUSE_PER_DRAWING", 0.0)
    return Console(file=Terminal(), force_terminal=True, color_system=None, width=40, height=10, legacy_windows=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_the_text_untouched_and_one_last_newline() -> None:
    out, err = io.StringIO(), io.StringIO()
    view = view_for(out, err, markdown=True)
    view.thinking("hidden", 3)
    view.content("**a** \x1b[1m")
    view.content("b")
    view.close()
    view.close()
    assert out.getvalue() == "**a** \x1b[1mb\n"
    assert err.getvalue() == ""


def test_thinking_shows_dimmed_beside_a_pipe_when_a_person_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, err = io.StringIO(), Terminal()
    view = PlainView(out, err)
    view.thinking("a\x1b]0;x\x07", 2)
    view.content("b")
    view.close()
    assert err.getvalue() == "\x1b[2ma␛]0;x␇\x1b[0m\n(2 tokens of thinking)\n\n"
    assert out.getvalue() == "b\n"


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_harmless_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    view = view_for(out, io.StringIO(), markdown=True)
    view.content("**a** \x1b[1m")
    view.close()
    assert out.getvalue() == "**a** ␛[1m\n"


def test_markdown_is_laid_out_the_same_whole_or_letter_by_letter(terminal: Console) -> None:
    text = "# Title\n\nSome **bold** words.\n\n- one\n- two\n\n```py\nx = 1\n```\n你好"
    view = TerminalView(terminal, terminal, markdown=True)
    for character in text:
        view.content(character)
    view.close()
    expected = ["Title", "", "Some bold words.", "", " • one", " • two", "", " x = 1", "", "你好"]
    assert screen(written(terminal))[: len(expected)] == expected
    assert not "".join(screen(written(terminal))[len(expected) :]).strip()


def test_what_is_finished_is_written_once(terminal: Console) -> None:
    view = TerminalView(terminal, terminal, markdown=True)
    view.content("finished\n\n")
    for number in range(50):
        view.content(f"word{number} ")
    view.close()
    assert written(terminal).count("finished") == 1
    assert written(terminal).count("word0 ") > 10


def test_no_more_is_drawn_again_than_fits_on_the_screen(terminal: Console) -> None:
    view = TerminalView(terminal, terminal, markdown=True)
    for fence in ("", "```\n"):
        view.content(fence)
        for number in range(40):
            view.content(f"- line{number}\n")
    view.close()
    ups = [len(run) // len("\x1b[1A\x1b[2K") for run in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", written(terminal))]
    assert max(ups) < terminal.height
    lines = screen(written(terminal))
    assert [line for line in lines if line.endswith(("line0", "line39"))] == [
        *(" • line0", " • line39"),
        *(" - line0", " - line39"),
    ]


def test_thinking_is_folded_to_one_line(terminal: Console) -> None:
    view = TerminalView(terminal, terminal, markdown=True)
    for number in range(100):
        view.thinking(f"thought{number}\n", 2)
    view.content("answer")
    view.close()
    lines = [line for line in screen(written(terminal)) if line]
    assert re.fullmatch(r"Thought for \d+\.\d s \(200 tokens\)", lines[0])
    assert lines[1:] == ["answer"]
    assert "\x1b[?25h" in written(terminal)


def test_thinking_that_was_cut_off_is_folded_too(terminal: Console) -> None:
    view = TerminalView(terminal, terminal, markdown=True)
    view.thinking("hm", 1)
    view.close()
    assert [line[:11] for line in screen(written(terminal)) if line] == ["Thought for"]


@pytest.mark.parametrize("markdown", [True, False])
def test_hostile_text_moves_no_cursor(terminal: Console, markdown: bool) -> None:
    view = TerminalView(terminal, terminal, markdown=markdown)
    for character in "a\x1b[2J\x1b]0;title\x07\x9b1A\rb\n\n[/bold]":
        view.content(character)
    view.close()
    output = written(terminal)
    assert "\x1b[2J" not in output
    assert "\x1b]" not in output
    assert "\x07" not in output
    assert "\x9b" not in output
    assert "[/bold]" in output


def test_without_markdown_the_text_is_written_as_it_comes(terminal: Console) -> None:
    view = TerminalView(terminal, terminal, markdown=False)
    view.content("**a**\n\n")
    view.content("- b")
    view.close()
    assert written(terminal) == "**a**\n\n- b\n"


def test_a_slow_layout_is_drawn_less_often(monkeypatch: pytest.MonkeyPatch, terminal: Console) -> None:
    clock = iter(range(10_000))
    draws: list[Any] = []
    monkeypatch.setattr(view_module, "PAUSE_PER_DRAWING", 9.0)
    region = view_module.LiveRegion(terminal)
    monkeypatch.setattr(view_module.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(view_module.Live, "update", lambda *args, **options: draws.append(args))
    for _ in range(100):
        region.draw("x")
    assert len(draws) <= 12
