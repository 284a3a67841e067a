"""Progress on a terminal, in a log, and nowhere."""

from __future__ import annotations

import io
import re

import pytest

from qwill.hub.progress import BarProgress, LineProgress, SilentProgress, format_bytes, terminal_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_at_every_tenth() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start(1_000_000, "tiny", 0)
    for _ in range(100):
        progress.advance(10_000, "model.safetensors")
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tiny: 1.0 MB"
    percents = [int(match[1]) for line in lines[1:] if (match := re.search(r"(\d+) %", line))]
    assert percents == list(range(10, 101, 10))
    assert all("/s" in line and "(model.safetensors)" in line for line in lines[1:])
    assert "s left" in lines[1]
    assert "left" not in lines[-1]


def test_big_steps_write_one_line_each_and_going_back_writes_none() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start(100, "work", unit="steps")
    progress.advance(45)
    progress.advance(-45)
    progress.advance(45)
    progress.advance(55)
    assert [line[:12] for line in stream.getvalue().splitlines()] == ["work: 100 st", "work:  45 %,", "work: 100 %,"]


def test_a_resumed_download_says_so() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start(1000, "tiny", 430)
    progress.advance(69)
    progress.advance(1)
    assert stream.getvalue().splitlines()[0] == "tiny: 1.0 kB, resumed at 43 %"
    assert stream.getvalue().splitlines()[1].startswith("tiny:  50 %")


def test_no_work_is_no_trouble() -> None:
    for progress in (LineProgress(io.StringIO()), BarProgress(Terminal()), SilentProgress()):
        progress.start(0, "nothing")
        progress.advance(0)
        progress.message("done")
        progress.finish()
        progress.finish()
        progress.advance(1)


def test_a_terminal_gets_one_bar_with_amounts_speed_and_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    progress = terminal_progress(stream)
    progress.start(1_500_000_000, "qwen3-0.6b", 645_000_000)
    progress.advance(105_000_000, "model.safetensors")
    progress.message("a word")
    progress.finish()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "qwen3-0.6b (resumed at 43 %)" in text
    assert "0.8/1.5 GB" in text
    assert "model.safetensors" in text
    assert "a word" in text


def test_text_in_brackets_is_text_and_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = BarProgress(stream)
    progress.start(10, "[bold]x[/bold]", unit="tensors")
    progress.message("[red]y")
    progress.finish()
    assert "[bold]x[/bold]" in stream.getvalue()
    assert "[red]y" in stream.getvalue()


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = Terminal()
    progress = terminal_progress(stream)
    progress.start(10, "x")
    progress.advance(10)
    progress.finish()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", stream.getvalue())


def test_the_kind_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(terminal_progress(io.StringIO()), LineProgress)
    assert isinstance(terminal_progress(Terminal()), BarProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(terminal_progress(Terminal()), LineProgress)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    assert isinstance(terminal_progress(Terminal()), SilentProgress)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_503_264_768, "1.5 GB"),
        (2.5e12, "2.5 TB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_bytes_are_written_as_hubs_count_them(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize("kind", [LineProgress, BarProgress])
def test_names_out_of_a_file_do_not_steer_the_terminal(kind: type[LineProgress] | type[BarProgress]) -> None:
    stream = io.StringIO()
    progress = kind(stream)
    progress.message("before \x1b]0;x\x07\u009b2J")
    progress.start(10, "label\x1b[2J", unit="steps")
    progress.advance(10, "tensor\x1b[2J\r\u202e.weight")
    progress.message("after \x1b[2J")
    progress.finish()
    assert "\x1b[2J" not in stream.getvalue()
    assert not {"\x07", "\u009b", "\u202e"} & {*stream.getvalue()}
    assert "tensor" in stream.getvalue()
