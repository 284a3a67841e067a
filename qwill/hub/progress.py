"""Progress of anything that takes longer than a moment: downloads, loading, checking, benchmarks.

A worker calls `start`, then `advance` as it goes, and `finish` at the end (also after an error). It never knows who
looks on. On a terminal that is one bar; elsewhere one line every 10 %; in a library call nothing at all.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["BarProgress", "LineProgress", "Progress", "SilentProgress", "format_bytes", "terminal_progress"]


class Progress(Protocol):
    """What a worker tells. One start/finish pair at a time; `finish` may be called twice."""

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        """Work of `total` units begins, of which `resumed` were done by an earlier run. Units: "bytes", or a noun."""

    def advance(self, count: int, item: str = "") -> None:
        """`count` more units are done (negative: some must be done again); `item` is what is being worked on."""

    def message(self, text: str) -> None:
        """One line for the reader, at any time, also before `start`."""

    def finish(self) -> None:
        """The work is over, well or not."""


class SilentProgress:
    """Tells nobody: the default of the library."""

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        """Nothing to show."""

    def advance(self, count: int, item: str = "") -> None:
        """Nothing to show."""

    def message(self, text: str) -> None:
        """Nothing to show."""

    def finish(self) -> None:
        """Nothing to show."""


class LineProgress:
    """For logs and pipes: one line at every tenth of the work, with the amount, the speed and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = 0

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        """Announce the work and what was already done."""
        self._total, self._label, self._unit = total, label, unit
        self._done = self._resumed = resumed
        self._began = time.monotonic()
        self._next_tenth = resumed * 10 // total + 1 if total else 1
        percent = _percent(resumed, total)
        self._write(f"{label}: {_amount(total, unit)}" + (f", resumed at {percent} %" if percent else ""))

    def advance(self, count: int, item: str = "") -> None:
        """Write a line when another tenth is full."""
        self._done += count
        if not self._total or self._done * 10 < self._next_tenth * self._total:
            return
        self._next_tenth = self._done * 10 // self._total + 1
        speed = (self._done - self._resumed) / max(time.monotonic() - self._began, 1e-3)
        left = max(self._total - self._done, 0) / max(speed, 1e-9)
        percent = self._done * 100 // self._total
        ending = f", {left:.0f} s left" if self._done < self._total else ""
        ending += f" ({item})" if item else ""
        self._write(f"{self._label}: {percent:3d} %, {_amount(int(speed), self._unit)}/s{ending}")

    def message(self, text: str) -> None:
        """Write it."""
        self._write(text)

    def finish(self) -> None:
        """Forget the work."""
        self._total = 0

    def _write(self, line: str) -> None:
        print(_visible(line), file=self._stream, flush=True)


class BarProgress:
    """For a terminal: one bar over the whole work, with amounts, speed, time left and the current item."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        """Draw the bar."""
        self.finish()
        if percent := _percent(resumed, total):
            label = f"{label} (resumed at {percent} %)"
        self._bar = _rich_bar(self._stream, unit)
        self._bar.start()
        self._task = self._bar.add_task(_visible(label), total=total, completed=resumed, item="")

    def advance(self, count: int, item: str = "") -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=count, item=_visible(item))

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        text = _visible(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def finish(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None


def terminal_progress(stream: TextIO | None = None) -> Progress:
    """The right kind of progress for a stream (default stderr): a bar on a terminal, lines elsewhere.

    HF_HUB_DISABLE_PROGRESS_BARS turns it off; NO_COLOR is respected.
    """
    stream = stream or sys.stderr
    if os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return SilentProgress()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return BarProgress(stream)
    return LineProgress(stream)


def format_bytes(count: float) -> str:
    """Bytes for people, in powers of 1000 as disks and hubs count: 1503264768 -> "1.5 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.95:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _visible(text: str) -> str:
    """Names come from a model's files, which nobody vouches for: what could steer a terminal shows as \ufffd."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\ufffd" for sign in text)


def _percent(part: int, total: int) -> int:
    return part * 100 // total if total else 0


def _amount(count: int, unit: str) -> str:
    return format_bytes(count) if unit == "bytes" else f"{count} {unit}"


def _rich_bar(stream: TextIO, unit: str) -> RichProgress:
    from rich import progress as rich
    from rich.console import Console

    columns: list[rich.ProgressColumn] = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn(None)]
    if unit == "bytes":
        columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()]
    else:
        columns += [rich.MofNCompleteColumn(), rich.TextColumn(unit, markup=False)]
    columns += [rich.TimeRemainingColumn(compact=True), rich.TextColumn("{task.fields[item]}", markup=False)]
    return rich.Progress(*columns, console=Console(file=stream), expand=True)
