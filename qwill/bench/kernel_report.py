"""The timings of the native ops as a table for the terminal."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qwill.bench.kernels import KernelMeasurement, Timing
from qwill.bench.report import PLAIN_WIDTH, short

__all__ = ["print_kernels"]

COLUMNS = ("µs", "GB/s", "share of bandwidth", "GOP/s")


def print_kernels(measured: KernelMeasurement, file: TextIO) -> None:
    """Write the head, then one table for each number of tokens."""
    console = Console(file=file, width=None if file.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(
        f"native ops, {measured.isa}, {measured.threads} threads, at the shapes of Qwen3-0.6B\n"
        f"{measured.machine['cpu']}, memory read at {measured.read_bandwidth / 1e9:.1f} GB/s",
        markup=False,
    )
    for tokens in sorted({timing.tokens for timing in measured.timings}):
        title = f"{tokens} token{'s' if tokens > 1 else ''}; median (min – max)"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1))
        for column in ("op", "weights"):
            table.add_column(column, no_wrap=True)
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for timing in measured.timings:
            if timing.tokens == tokens:
                table.add_row(*map(Text, _cells(timing)))
        console.print(table)


def _cells(timing: Timing) -> list[str]:
    median, low, high = (short(1e6 * t) for t in (timing.seconds.median, timing.seconds.low, timing.seconds.high))
    share, operations = timing.share_of_read_bandwidth, timing.operations_per_second
    return [
        timing.op,
        timing.weights,
        f"{median} ({low}–{high})",
        short(timing.bytes_per_second / 1e9),
        f"{share:.0%}" if share is not None else "",
        short(operations / 1e9) if operations is not None else "",
    ]
