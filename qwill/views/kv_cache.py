"""KV cache: which block belongs to which request at each step of a trace, what is shared, and what was there before.

A request's keys and values lie in blocks of some tokens; its block table lists them in order. Requests that begin alike
use the same blocks. The idea is that of PagedAttention (arXiv:2309.06180). Knows a trace's records alone.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qwill.errors import UsageError
from qwill.tracing import ShareRecord, StepRecord, Trace
from qwill.views.lettering import letter_of
from qwill.views.view import View, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KVCacheView", "kv_cache"]

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MOST_COLUMNS, MOST_ROWS = 80, 120
"""Of the table in the HTML; the data has everything."""
MOST_LABELS = 24
EMPTY = ""


@dataclass(frozen=True)
class KVCacheView(View):
    """Blocks of the KV cache, step by step.

    `data()`: "block_size" (tokens), "num_blocks" (of the whole cache), "blocks" (numbers of those that were used, in
    order), "requests": "id", "letter", "prompt_tokens", "cached_tokens"; "steps": "index", "start" and "seconds",
    "free", "cached" and "in_use" (blocks), "elsewhere" (of those, blocks of requests that computed nothing in this
    step), "shares": "request", "start", "count", "num_drafts", "blocks" (its block table), "cached_tokens"; "shared"
    (blocks in the tables of several of these requests), "copies": [from, to, tokens].
    """

    block_size: int
    steps: tuple[StepRecord, ...]
    title: str = "KV cache"
    caption: str = (
        "One row for each block, one column for each step. A letter is the request that uses the block: a capital "
        "where it computed it, a small one where it found it in the prefix cache. Several letters share a block. Where "
        "there is none, no request of the step uses it; what it holds may still be cached."
    )

    def data(self) -> dict[str, Any]:
        """See the class."""
        return {
            "block_size": self.block_size,
            "num_blocks": self.steps[0].num_blocks,
            "blocks": self.blocks,
            "requests": [
                {
                    "id": share.request_id,
                    "letter": self.letters[share.request_id],
                    "prompt_tokens": share.num_prompt_tokens,
                    "cached_tokens": share.cached_tokens,
                }
                for share in self.requests
            ],
            "steps": [self._step_data(step) for step in self.steps],
        }

    def _step_data(self, step: StepRecord) -> dict[str, Any]:
        held = self.held(step)
        return {
            "index": step.index,
            "start": step.start,
            "seconds": step.seconds,
            "free": step.free_blocks,
            "cached": step.cached_blocks,
            "in_use": step.num_blocks - step.free_blocks,
            "elsewhere": step.num_blocks - step.free_blocks - len(held),
            "shares": [
                {
                    "request": share.request_id,
                    "start": share.start,
                    "count": share.count,
                    "num_drafts": share.num_drafts,
                    "blocks": list(share.block_table),
                    "cached_tokens": share.cached_tokens,
                }
                for share in step.shares
            ],
            "shared": sorted(block for block, users in held.items() if len(users) > 1),
            "copies": [list(copy) for copy in step.copies],
        }

    @cached_property
    def blocks(self) -> list[int]:
        """The blocks that any request used, in order of their numbers."""
        return sorted({block for step in self.steps for share in step.shares for block in share.block_table})

    @cached_property
    def requests(self) -> list[ShareRecord]:
        """The first share of each request, in order of appearance."""
        firsts: dict[str, ShareRecord] = {}
        for step in self.steps:
            for share in step.shares:
                firsts.setdefault(share.request_id, share)
        return list(firsts.values())

    @cached_property
    def letters(self) -> dict[str, str]:
        """Request -> its letter in the pictures: A … Z, A1, …"""
        return {share.request_id: letter_of(number) for number, share in enumerate(self.requests)}

    def held(self, step: StepRecord) -> dict[int, list[ShareRecord]]:
        """Block -> the shares of this step in whose tables it is."""
        users: dict[int, list[ShareRecord]] = {}
        for share in step.shares:
            for block in share.block_table:
                users.setdefault(block, []).append(share)
        return users

    def figure(self) -> Figure:
        """Above, the map of blocks and steps; below, how many blocks are in use and how many are cached."""
        rows = len(self.blocks)
        height = min(max(0.22 * rows, 1.8), 9.0)
        figure = new_figure(min(max(6.5, 0.22 * len(self.steps) + 3.0), 14.0), height + 2.9)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
        self._draw_map(above)
        steps = [step.index for step in self.steps]
        used = [step.num_blocks - step.free_blocks for step in self.steps]
        cached = [step.cached_blocks for step in self.steps]
        below.step(steps, used, where="mid", color="#0072B2", label="in use")
        below.step(steps, cached, "--", where="mid", color="#D55E00", label="in the prefix cache")
        below.set_ylim(bottom=0)
        below.set_xlabel("step")
        below.set_ylabel("blocks")
        below.xaxis.get_major_locator().set_params(integer=True)
        below.yaxis.get_major_locator().set_params(integer=True)
        below.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    def _draw_map(self, axes: Axes) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch, Rectangle

        grid = self._grid()
        blocks = self.blocks
        for rows, columns, cell in _areas(grid):
            color = COLORS[self._number(cell) % len(COLORS)]
            place = (columns.start + self.steps[0].index - 0.5, rows.start - 0.5)
            axes.add_patch(
                Rectangle(
                    place, len(columns), len(rows), facecolor=color, alpha=0.6, edgecolor="white",
                    hatch="///" if len(cell.split()) > 1 else None,
                )
            )  # fmt: skip
            middle = (place[0] + len(columns) / 2, place[1] + len(rows) / 2)
            box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.8}
            axes.text(
                *middle, cell, ha="center", va="center", fontsize=7, bbox=box, clip_on=True, color="black", zorder=4
            )
        self._draw_writes(axes, blocks)
        axes.set_xlim(self.steps[0].index - 0.5, self.steps[-1].index + 0.5)
        axes.set_ylim(len(blocks) - 0.5, -0.5)
        labelled = range(0, len(blocks), max(1, -(-len(blocks) // MOST_LABELS)))
        axes.set_yticks(labelled, [str(blocks[row]) for row in labelled], fontsize=8)
        axes.set_ylabel(f"block ({self.block_size} tokens each)")
        axes.set_title(f"{self.title}: whose block is it?", fontsize=10)
        handles: list[Artist] = [
            Patch(facecolor=COLORS[number % len(COLORS)], alpha=0.6, label=self._told(share, ascii_only=True))
            for number, share in enumerate(self.requests[:MOST_LABELS])
        ]
        handles.append(Patch(facecolor="#aaaaaa", edgecolor="white", hatch="///", label="shared by several"))
        handles.append(Line2D([], [], color="black", marker=".", linestyle="", label="written in this step"))
        axes.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def _draw_writes(self, axes: Axes, blocks: Sequence[int]) -> None:
        """A dot where something is written, and an arrow where a block's beginning is copied to another one."""
        rows = {block: row for row, block in enumerate(blocks)}
        for step in self.steps:
            dots = [rows[block] for share in step.shares for block in self._written(share)]
            axes.scatter([step.index] * len(dots), dots, s=5, color="black", zorder=3, linewidths=0)
            known = [copy for copy in step.copies if copy[0] in rows and copy[1] in rows]
            for number, (source, target, _) in enumerate(known):
                x = step.index + (number + 1) / (len(known) + 1) - 0.5
                arrow = {"arrowstyle": "->", "linewidth": 1.2}
                axes.annotate("", (x, rows[target]), (x, rows[source]), arrowprops=arrow)

    def _written(self, share: ShareRecord) -> tuple[int, ...]:
        """The blocks that a share's new keys and values go to."""
        last = share.start + share.count + share.num_drafts - 1
        return share.block_table[share.start // self.block_size : last // self.block_size + 1]

    def _number(self, cell: str) -> int:
        """Which request a cell's first letter stands for."""
        first = cell.split()[0]
        return ord(first[0].upper()) - 65 + 26 * int(first[1:] or 0)

    def _told(self, share: ShareRecord, *, ascii_only: bool = False) -> str:
        """A request in a few words, with every character that does not show made visible."""
        name = "".join(
            c if c.isprintable() and (not ascii_only or c.isascii()) else ascii(c)[1:-1] for c in share.request_id
        )
        name = name[:40].replace("$", r"\$") if ascii_only else name[:40]
        hit = f", {share.cached_tokens} of them cached" if share.cached_tokens else ""
        return f"{self.letters[share.request_id]}  {name}: prompt of {share.num_prompt_tokens}{hit}"

    def _grid(self) -> list[list[str]]:
        """For each used block, what stands in its cell at each step: letters, or nothing."""
        rows: dict[int, list[str]] = {block: [EMPTY] * len(self.steps) for block in self.blocks}
        letters = self.letters
        for column, step in enumerate(self.steps):
            for share in step.shares:
                letter = letters[share.request_id]
                for place, block in enumerate(share.block_table):
                    found = place * self.block_size < share.cached_tokens
                    cell = letter.lower() if found else letter
                    rows[block][column] = f"{rows[block][column]} {cell}".strip()
        return list(rows.values())

    def _repr_html_(self) -> str:
        requests = "".join(
            f'<li><span style="{_filled(number)};padding:0 0.3em">{html.escape(self._told(share)[:2])}</span>'
            f"{html.escape(self._told(share)[2:])}</li>"
            for number, share in enumerate(self.requests)
        )
        return self._framed(f'<ul style="list-style:none;padding:0">{requests}</ul>{self._table()}')

    def _table(self) -> str:
        """Steps in which nothing changes share a column, and blocks to which the same happens share a row."""
        grid = self._grid()
        columns = list(
            _runs([(*cells, step.copies) for cells, step in zip(zip(*grid, strict=True), self.steps, strict=True)])
        )
        rows = list(_runs([(*cells, gap) for cells, gap in zip(grid, _gaps(self.blocks), strict=True)]))
        left_out = max(len(columns) - MOST_COLUMNS, 0), max(len(rows) - MOST_ROWS, 0)
        columns, rows = columns[:MOST_COLUMNS], rows[:MOST_ROWS]
        lines = [_line("step", [_span(self.steps[c.start].index, len(c)) for c in columns], head=True)]
        for row in rows:
            label = "block " + _span(self.blocks[row.start], len(row))
            lines.append(self._block_line(label, [grid[row.start][column.start] for column in columns]))
        firsts = [self.steps[column.start] for column in columns]
        tokens = [
            sum(s.count + s.num_drafts for step in self.steps[c.start : c.stop] for s in step.shares) for c in columns
        ]
        lines.append(_line("tokens computed", map(str, tokens)))
        lines.append(_line("blocks in use", [str(step.num_blocks - step.free_blocks) for step in firsts]))
        lines.append(_line("free", [str(step.free_blocks) for step in firsts]))
        lines.append(_line("in the prefix cache", [str(step.cached_blocks) for step in firsts]))
        notes = [
            f"Before step {step.index}, the first {count} tokens of block {source} were copied to block {target}."
            for step in firsts
            for source, target, count in step.copies
        ]
        if any(left_out):
            notes.append(f"Not shown: {left_out[0]} more columns, {left_out[1]} more rows.")
        style = "border-collapse:separate;border-spacing:2px;font-size:0.85em;color:inherit"
        paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        return f'<table style="{style}"><tbody>{"".join(lines)}</tbody></table>{paragraphs}'

    def _block_line(self, label: str, cells: Sequence[str]) -> str:
        styles = [
            _filled(self._number(cell), shared=len(cell.split()) > 1) if cell else "opacity:0.4" for cell in cells
        ]
        return _line(label, [cell or "·" for cell in cells], styles)


def _line(label: str, cells: Any, styles: Sequence[str] | None = None, *, head: bool = False) -> str:
    texts = list(cells)
    tag = "th" if head else "td"
    inside = "".join(
        f'<{tag} style="text-align:center;white-space:nowrap;padding:0.1em 0.4em;{style}">{html.escape(text)}</{tag}>'
        for text, style in zip(texts, styles or [""] * len(texts), strict=True)
    )
    return (
        '<tr><th scope="row" style="text-align:left;white-space:nowrap;font-weight:normal;padding-right:0.6em">'
        f"{html.escape(label)}</th>{inside}</tr>"
    )


def _filled(number: int, *, shared: bool = False) -> str:
    """The background of a request's cells, stripes where it is not alone."""
    color = COLORS[number % len(COLORS)]
    if shared:
        return f"background:repeating-linear-gradient(45deg,{color}66 0 5px,{color}22 5px 10px)"
    return f"background:{color}66"


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}–{first + count - 1}"


def _gaps(blocks: Sequence[int]) -> list[int]:
    """The same number for blocks that follow each other without a gap."""
    return [block - place for place, block in enumerate(blocks)]


def _runs(items: Sequence[Any]) -> Iterator[range]:
    """The places of equal neighbours."""
    for _, places in itertools.groupby(range(len(items)), key=lambda place: items[place]):
        run = list(places)
        yield range(run[0], run[-1] + 1)


def _areas(grid: Sequence[Sequence[str]]) -> Iterator[tuple[range, range, str]]:
    """Rectangles of equal cells: rows that are equal throughout are taken together, then columns within them."""
    for rows in _runs([tuple(row) for row in grid]):
        cells = grid[rows.start]
        for columns in _runs(cells):
            if cells[columns.start]:
                yield rows, columns, cells[columns.start]


def kv_cache(trace: Trace) -> KVCacheView:
    """The blocks of the KV cache over the steps of a trace.

    Raises:
        UsageError: nothing was computed while tracing.
    """
    if not trace.steps:
        raise UsageError("the trace has no steps", hint="generate something inside the `with` block")
    return KVCacheView(trace.block_size, tuple(trace.steps))
