"""Roofline: where the time of a trace went, op by op, held against the time that memory alone would need.

Decoding reads every weight for one token, so memory is its limit; a long prompt uses each weight many times, so
arithmetic is. The picture is that of Williams, Waterman and Patterson (doi:10.1145/1498765.1498785). Knows a trace's
records alone; how fast memory is, the caller measures and tells.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from qwill.errors import SettingError, UsageError
from qwill.tracing import Trace
from qwill.views.amounts import amount, duration, percent
from qwill.views.lettering import letter_of
from qwill.views.op_times import PHASES, OpTime, PhaseTime, times_of
from qwill.views.view import View, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HONEST", "RooflineView", "roofline"]

HONEST = (
    "While a trace is taken, ops are called one by one and each is timed; otherwise, where native ops run, a decoding "
    "step is recorded once and replayed without Python in between. So a traced decoding step takes longer than others. "
    "Outside the ops are Python, laying out the batch, and the tracing itself."
)
"""What whoever shows these times has to say."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MARKERS = {"prefill": "o", "mixed": "s", "decode": "^"}


@dataclass(frozen=True)
class RooflineView(View):
    """Time, bytes and operations per op and phase.

    `data()`: "read_bandwidth" (bytes/s or null), "peak_operations" (per second or null), "untraced_step_seconds" (of
    a decoding step, or null), "note" (`HONEST`), "ops": the fields of `OpTime` with "share" of the phase's time,
    "bytes_per_second", "bandwidth_share" (or null), "operations_per_second" and "intensity"; "phases": the fields of
    `PhaseTime` with "outside_seconds".
    """

    ops: tuple[OpTime, ...]
    phases: tuple[PhaseTime, ...]
    read_bandwidth: float | None = None
    peak_operations: float | None = None
    untraced_step_seconds: float | None = None
    title: str = "Time and bytes per op"
    caption: str = (
        "How long each op took, and how long reading and writing its bytes at the speed of memory would take. What "
        "lies in the processor's cache comes faster than that."
    )

    def data(self) -> dict[str, Any]:
        """See the class."""
        return {
            "read_bandwidth": self.read_bandwidth,
            "peak_operations": self.peak_operations,
            "untraced_step_seconds": self.untraced_step_seconds,
            "note": HONEST,
            "ops": [self._op_data(one) for one in self.ops],
            "phases": [{**asdict(one), "outside_seconds": one.outside_seconds} for one in self.phases],
        }

    def _op_data(self, one: OpTime) -> dict[str, Any]:
        return {
            **asdict(one),
            "share": self.share(one),
            "bytes_per_second": one.bytes_per_second,
            "bandwidth_share": self.bandwidth_share(one),
            "operations_per_second": one.operations_per_second,
            "intensity": one.intensity,
        }

    def ops_of(self, phase: str) -> list[OpTime]:
        """The ops of one phase, those that took longest first."""
        return sorted((one for one in self.ops if one.phase == phase), key=lambda one: -one.seconds)

    def phase(self, name: str) -> PhaseTime:
        """One phase.

        Raises:
            SettingError: the trace has no such phase.
        """
        for one in self.phases:
            if one.phase == name:
                return one
        raise SettingError(f"there is no phase {name!r:.50}", hint=", ".join(one.phase for one in self.phases))

    def share(self, one: OpTime) -> float:
        """What part of its phase's time an op took."""
        whole = self.phase(one.phase).seconds
        return one.seconds / whole if whole else 0.0

    def bandwidth_share(self, one: OpTime) -> float | None:
        """Bytes per second, as a part of the read bandwidth; None where that is not known."""
        return one.bytes_per_second / self.read_bandwidth if self.read_bandwidth else None

    def remark(self) -> str:
        """What tracing cost the decoding steps of this trace, where it was measured; else ""."""
        decode = next((one for one in self.phases if one.phase == "decode"), None)
        if decode is None or not self.untraced_step_seconds:
            return ""
        traced = decode.seconds / decode.steps
        times = traced / self.untraced_step_seconds
        return (
            f"Measured here: a decoding step took {duration(traced)} in this trace and "
            f"{duration(self.untraced_step_seconds)} without it, {times:.2f} times as long."
        )

    def figure(self) -> Figure:
        """Above, the roofline, both axes logarithmic; below, for each phase, the ops' times as bars."""
        names = list(dict.fromkeys(one.name for phase in PHASES[::-1] for one in self.ops_of(phase)))
        letters = {name: letter_of(number) for number, name in enumerate(names)}
        rows = max((len(self.ops_of(one.phase)) for one in self.phases), default=1) + 1
        figure = new_figure(max(9.0, 4.8 * len(self.phases)), 4.2 + 0.24 * rows)
        parts: Any = figure.subfigures(2, 1, height_ratios=[3.8, 0.4 + 0.24 * rows])
        self._draw_roof(parts[0].subplots(), letters)
        for axes, phase in zip(parts[1].subplots(1, len(self.phases), squeeze=False)[0], self.phases, strict=True):
            self._draw_bars(axes, phase, letters)
        return figure

    def _draw_roof(self, axes: Axes, letters: dict[str, str]) -> None:
        dots = [one for one in self.ops if one.intensity > 0 and one.seconds > 0]
        axes.set_xscale("log")
        axes.set_yscale("log")
        for phase in PHASES:
            mine = [one for one in dots if one.phase == phase]
            axes.scatter(
                [one.intensity for one in mine],
                [one.operations_per_second for one in mine],
                marker=MARKERS[phase], s=70, alpha=0.55, label=phase if mine else None,
                color=[_color(letters[one.name]) for one in mine],
            )  # fmt: skip
        for group in _close_together(dots):
            text = " ".join(dict.fromkeys(letters[one.name] for one in group))
            place = (group[-1].intensity, group[-1].operations_per_second)
            axes.annotate(text, place, textcoords="offset points", xytext=(7, 0), fontsize=8, va="center")
        self._draw_limits(axes, dots)
        axes.set_xlabel("operations per byte")
        axes.set_ylabel("operations per second")
        axes.set_title("Arithmetic against memory; letters as below", fontsize=10)
        if dots:
            axes.legend(fontsize=8, loc="lower right")
        axes.grid(alpha=0.25)

    def _draw_limits(self, axes: Axes, dots: Sequence[OpTime]) -> None:
        """The line that memory sets, and the one that arithmetic sets, where they are known."""
        if not dots:
            axes.text(0.5, 0.5, "no op here does arithmetic", ha="center", transform=axes.transAxes)
            return
        least, most = min(one.intensity for one in dots) / 3, max(one.intensity for one in dots) * 3
        peak = self.peak_operations
        if self.read_bandwidth:
            corner = most if peak is None else min(most, peak / self.read_bandwidth)
            label = f"memory: {amount(self.read_bandwidth, 'B/s')}"
            xs = [min(least, corner), corner]
            axes.plot(xs, [x * self.read_bandwidth for x in xs], color="#333333", linewidth=1.5, label=label)
            least = corner
        if peak:
            label = f"arithmetic: {amount(peak, 'op/s')}"
            axes.plot([least, max(most, least)], [peak, peak], "--", color="#333333", linewidth=1.5, label=label)

    def _draw_bars(self, axes: Axes, phase: PhaseTime, letters: dict[str, str]) -> None:
        ops = self.ops_of(phase.phase)
        labels = [f"{one.name}  {letters[one.name]}" for one in ops] + ["outside ops"]
        times = [1e3 * one.seconds / phase.steps for one in ops] + [1e3 * phase.outside_seconds / phase.steps]
        places = range(len(labels))
        colors = [_color(letters[one.name]) for one in ops] + ["#cccccc"]
        axes.barh(places, times, color=colors, height=0.7, alpha=0.7)
        if self.read_bandwidth:
            memory = [1e3 * one.nbytes / self.read_bandwidth / phase.steps for one in ops]
            axes.barh(places[:-1], memory, height=0.35, fill=False, hatch="////")
        for place, time in zip(places, times, strict=True):
            axes.annotate(
                duration(time / 1e3), (max(time, 0), place), xytext=(3, 0), textcoords="offset points", fontsize=7,
                va="center",
            )  # fmt: skip
        axes.set_yticks(places, labels, fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        hatched = "; hatched: what memory alone would take" if self.read_bandwidth else ""
        axes.set_xlabel(f"ms per step{hatched}", fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        count = f"{phase.steps} step{'s' if phase.steps > 1 else ''}, {phase.tokens} tokens"
        axes.set_title(f"{phase.phase}: {count}, {duration(phase.seconds / phase.steps)} each", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)

    def _repr_html_(self) -> str:
        parts = [self._table(phase) for phase in self.phases]
        remarks = " ".join(part for part in (HONEST, self.remark()) if part)
        parts.append(f'<p style="opacity:0.75;max-width:50em">{html.escape(remarks)}</p>')
        return self._framed("".join(parts))

    def _table(self, phase: PhaseTime) -> str:
        heads = ["", "calls", "time", "of the phase", "bytes", "speed", "of memory's", "arithmetic", "op per byte"]
        body = "".join(_row(cells, share) for cells, share in self.rows(phase))
        plural = "s" if phase.steps > 1 else ""
        caption = f"{phase.phase}: {phase.steps} step{plural}, {phase.tokens} tokens, {duration(phase.seconds)}"
        head = "".join(f'<th style="text-align:right;padding:0 0.6em">{html.escape(text)}</th>' for text in heads)
        return (
            '<table style="border-collapse:collapse;margin:0.6em 0;font-size:0.9em;color:inherit">'
            f'<caption style="text-align:left"><b>{html.escape(caption)}</b></caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def rows(self, phase: PhaseTime) -> list[tuple[list[str], float]]:
        """A phase as a table: a row of texts for each op and one for what is outside them, each with its share of time.

        The columns: op, calls, time, share of the phase, bytes, bytes/s, share of the memory's, op/s, op/byte.
        """
        share = phase.outside_seconds / phase.seconds if phase.seconds else 0.0
        outside = ["outside ops", "", duration(phase.outside_seconds), percent(share), *[""] * 5]
        return [*((self._cells(one), self.share(one)) for one in self.ops_of(phase.phase)), (outside, share)]

    def _cells(self, one: OpTime) -> list[str]:
        limit = self.bandwidth_share(one)
        return [
            one.name,
            str(one.calls),
            duration(one.seconds),
            percent(self.share(one)),
            amount(one.nbytes, "B"),
            amount(one.bytes_per_second, "B/s"),
            "–" if limit is None else percent(limit),
            amount(one.operations_per_second, "op/s") if one.operations else "–",
            f"{one.intensity:.3g}" if one.operations else "–",
        ]


def _row(cells: Sequence[str], share: float) -> str:
    """A row of the table; behind the time, a bar as long as its share."""
    styles = ["text-align:left;white-space:nowrap", *["text-align:right;white-space:nowrap"] * (len(cells) - 1)]
    end = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    styles[3] += f";background:linear-gradient(to right,#0072B255 {end},transparent {end})"
    tags = ["th scope='row'", *["td"] * (len(cells) - 1)]
    return "<tr>" + "".join(
        f'<{tag} style="{style};padding:0 0.6em;font-weight:normal">{html.escape(cell)}</{tag.split()[0]}>'
        for tag, style, cell in zip(tags, styles, cells, strict=True)
    ) + "</tr>"  # fmt: skip


def roofline(
    trace: Trace,
    *,
    read_bandwidth: float | None = None,
    peak_operations: float | None = None,
    untraced_step_seconds: float | None = None,
) -> RooflineView:
    """Time and bytes per op of a trace.

    `read_bandwidth` is how many bytes a second memory delivers, `peak_operations` how many multiplications and
    additions a second the processor can do, `untraced_step_seconds` how long a decoding step takes when nobody traces:
    numbers that the caller has measured, or None.

    Raises:
        UsageError: nothing was computed while tracing.
        SettingError: a measured number that cannot be one.
    """
    measured = {
        "read_bandwidth": read_bandwidth,
        "peak_operations": peak_operations,
        "untraced_step_seconds": untraced_step_seconds,
    }
    for name, value in measured.items():
        if value is not None and not 0 < value < math.inf:  # NaN is neither
            raise SettingError(f"{name} = {value} is no measurement", hint="a number above 0, or None")
    if not trace.steps:
        raise UsageError("the trace has no steps", hint="generate something inside the `with` block")
    ops, phases = times_of(trace)
    return RooflineView(ops, phases, read_bandwidth, peak_operations, untraced_step_seconds)


def _close_together(dots: Sequence[OpTime]) -> list[list[OpTime]]:
    """Dots whose letters would lie upon each other, in groups from left to right."""
    groups: list[list[OpTime]] = []
    for one in sorted(dots, key=lambda one: one.intensity):
        for group in groups:
            wide, high = (
                one.intensity / group[-1].intensity,
                one.operations_per_second / group[-1].operations_per_second,
            )
            if abs(math.log10(wide)) < 0.08 and abs(math.log10(high)) < 0.12:
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _color(letter: str) -> str:
    return COLORS[(ord(letter[0]) - 65) % len(COLORS)]
