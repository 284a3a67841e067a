"""A measurement as a table for the terminal and as a chart for a page. Shows every number, bad ones too."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qwill.bench.results import Group, Measurement, Row, Spread
from qwill.errors import BenchmarkError

__all__ = ["CHART_KINDS", "PLAIN_WIDTH", "head", "print_report", "short", "write_chart"]

PLAIN_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""
CHART_KINDS = (".png", ".svg", ".pdf")
OURS, OTHERS = "#2a6fb0", "#b8b8b8"


def print_report(measured: Measurement, file: TextIO) -> None:
    """Write the head, one table for each amount of work, and the notes."""
    console = Console(file=file, width=None if file.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(head(measured), markup=False)
    for group in measured.groups:
        console.print(_table(measured, group))
    for note in measured.notes:
        console.print(f"· {note}", markup=False)


def head(measured: Measurement) -> str:
    """What was measured, and where: three lines."""
    machine = measured.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{measured.model}: {measured.architecture}, {measured.parameters / 1e6:.1f} M parameters, {measured.dtype}, "
        f"{measured.threads} threads\n"
        f"{machine['cpu']}, {machine['usable_cores']} cores, memory read at {measured.read_bandwidth / 1e9:.1f} GB/s\n"
        f"python {machine['python']}, {versions}"
    )


def _table(measured: Measurement, group: Group) -> Table:
    compares = len(group.rows) > 1
    what = f"prompt {group.prompt_tokens}, {group.new_tokens} new tokens"
    runs = len(group.rows[0].runs)
    table = Table(
        title=f"{what}, greedy; median of {runs} runs (min – max)", title_justify="left", box=box.SIMPLE, padding=(0, 1)
    )
    table.add_column("", no_wrap=True)
    columns = ["load s", "TTFT ms", "prefill tok/s", "decode tok/s", *(["ratio"] if compares else []), "GB/s"]
    for column in [*columns, "peak RSS MiB"]:
        table.add_column(column, justify="right")
    if compares:
        table.add_column("token ids")
    best = max(row.decode_speed.median for row in group.rows)
    for row in group.rows:
        bold = compares and row.decode_speed.median == best
        table.add_row(*_cells(measured, group, row, compares=compares), style="bold" if bold else "")
    return table


def _cells(measured: Measurement, group: Group, row: Row, *, compares: bool) -> list[Text]:
    decodes, ratio = group.new_tokens > 1, group.ratio(row)
    cells = [
        row.label,
        f"{row.load_seconds:.2f}",
        _with_range(row.time_to_first_token, 1e3),
        _with_range(row.prefill_speed),
        _with_range(row.decode_speed) if decodes else "–",
    ]
    if compares:
        cells.append(f"{ratio:.2f} ×" if ratio else "–")
    share = row.read_speed / measured.read_bandwidth
    cells.append(f"{row.read_speed / 1e9:.1f} ({share:.0%})" if decodes else "–")
    cells.append(f"{row.peak_rss / 2**20:.0f}")
    if compares:
        cells.append(_ids(row))
    return [Text(cell) for cell in cells]


def _ids(row: Row) -> str:
    if row.difference is None:
        return "equal"
    kind = "near tie" if row.difference.near_tie else "differ"
    return f"{kind} at {row.difference.position + 1}"


def _with_range(value: Spread, scale: float = 1.0) -> str:
    median, low, high = (short(number * scale) for number in (value.median, value.low, value.high))
    return f"{median} ({low}–{high})"


def short(number: float) -> str:
    """Three significant figures without an exponent."""
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{digits}f}"


def write_chart(measured: Measurement, path: Path) -> None:
    """Draw decode speed, time to first token and peak memory, one row of bars for each amount of work.

    Raises:
        BenchmarkError: the file's ending is none of .png, .svg, .pdf, or matplotlib is not installed.
    """
    if path.suffix not in CHART_KINDS:
        raise BenchmarkError(f"cannot draw a chart as {path.name!r:.100}", hint="end it in " + ", ".join(CHART_KINDS))
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise BenchmarkError("matplotlib is not installed", hint="pip install 'qwill[bench]'") from error
    height = 1.2 + sum(0.45 * len(group.rows) + 0.9 for group in measured.groups)
    figure = figures.Figure(figsize=(11, height), layout="constrained")
    figure.suptitle(
        f"{measured.model}, {measured.dtype}, {measured.threads} threads, {measured.machine['cpu']}", fontsize=11
    )
    heights = [len(group.rows) for group in measured.groups]
    all_axes = figure.subplots(len(heights), len(_PANELS), squeeze=False, height_ratios=heights)
    for group, axes in zip(measured.groups, all_axes, strict=True):
        for (title, value), one in zip(_PANELS, axes, strict=True):
            _bars(one, group, title, value)
        for one in axes[1:]:
            one.set_yticklabels([])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


_PANELS: tuple[tuple[str, Callable[[Row], Spread]], ...] = (
    ("decode tok/s (more is better)", lambda row: row.decode_speed),
    ("time to first token, ms", lambda row: _scaled(row.time_to_first_token, 1e3)),
    ("peak memory, MiB", lambda row: Spread(*[row.peak_rss / 2**20] * 3)),
)


def _bars(axes: Any, group: Group, title: str, value: Callable[[Row], Spread]) -> None:
    """Horizontal bars from the median, with a whisker from the smallest to the largest repeat."""
    values = [value(row) for row in group.rows]
    medians = [one.median for one in values]
    whiskers = [[one.median - one.low for one in values], [one.high - one.median for one in values]]
    colors = [OURS if row.name.startswith("qwill") else OTHERS for row in group.rows]
    bars = axes.barh([row.label for row in group.rows], medians, xerr=whiskers, color=colors, height=0.65)
    axes.bar_label(bars, [short(median) for median in medians], padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_title(f"{title}\nprompt {group.prompt_tokens}, {group.new_tokens} new", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _scaled(value: Spread, factor: float) -> Spread:
    return Spread(value.median * factor, value.low * factor, value.high * factor)
