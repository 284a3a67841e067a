"""A trace on the terminal: what each kind of op took, or every single op. Knows records and sums; measures nothing."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from qwill.cli.terminal import harmless, is_terminal, print_table
from qwill.tracing import OpRecord, StepRecord
from qwill.views.amounts import amount, duration, percent
from qwill.views.op_times import PhaseTime, phase_of
from qwill.views.roofline import HONEST, RooflineView

__all__ = ["print_ops", "print_times"]

PLAIN_WIDTH = 100
"""Columns of text that goes to a file or a pipe."""

HEADS = ("op", "calls", "time", "share", "bytes", "bytes/s", "of memory", "op/s", "op/byte")
DISPENSABLE = (8, 7, 1, 4, 5, 6)
"""Columns of the table that a narrow terminal goes without, the first one first."""


def print_times(view: RooflineView, out: TextIO) -> None:
    """A table for each phase, and what there is to know about the numbers."""
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if is_terminal(out) else None
    missing: list[int] = []
    for phase in view.phases:
        rows = [cells for cells, _ in view.rows(phase)]
        missing = _too_wide(rows, width, missing)
        kept = [column for column in range(len(HEADS)) if column not in missing]
        print(f"\n{_told(phase)}", file=out)
        print_table([HEADS[c] for c in kept], [[row[c] for c in kept] for row in rows], out)
    if missing:
        names = ", ".join(HEADS[column] for column in sorted(missing))
        print(f"\nA wider terminal also shows: {names}.", file=out)
    for text in (view.caption, HONEST, view.remark()):
        if text:
            print("\n" + textwrap.fill(text, min(width or PLAIN_WIDTH, PLAIN_WIDTH)), file=out)


def _told(phase: PhaseTime) -> str:
    steps = f"{phase.steps} step{'s' if phase.steps > 1 else ''}"
    inside = phase.op_seconds / phase.seconds if phase.seconds else 0.0
    return (
        f"{phase.phase}: {steps}, {phase.tokens} token{'s' if phase.tokens > 1 else ''}, {duration(phase.seconds)}: "
        f"{duration(phase.op_seconds)} ({percent(inside)}) in ops, {duration(phase.outside_seconds)} outside them"
    )


def _too_wide(rows: Sequence[Sequence[str]], width: int | None, missing: Sequence[int]) -> list[int]:
    """The columns to leave out so that the table fits; at least those that are `missing` already."""
    left_out = list(missing)
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    for column in DISPENSABLE:
        needed = sum(2 + widths[c] for c in range(len(HEADS)) if c not in left_out) - 2
        if width is None or needed <= width:
            break
        if column not in left_out:
            left_out.append(column)
    return left_out


def print_ops(ops: Iterable[OpRecord], steps: Sequence[StepRecord], out: TextIO) -> None:
    """Every op on a line of its own, in order of time; the shapes, which differ in length, come last."""
    print(_line("step", "phase", "layer", "op", "module", "dtype", "time", "bytes", "GB/s", "shapes"), file=out)
    phases = {step.index: phase_of(step) for step in steps}
    for op in ops:
        module = op.module.removeprefix("model.").removeprefix(f"layers.{op.layer}.")
        rate = op.nbytes / op.seconds / 1e9 if op.seconds else 0.0
        shapes = f"{' '.join(map(_shape, op.inputs))} -> {_shape(op.output)}"
        line = _line(
            *(
                str(op.step),
                phases[op.step],
                "–" if op.layer is None else str(op.layer),
                op.op,
                module or "–",
                op.dtype,
            ),
            *(duration(op.seconds), amount(op.nbytes, "B"), f"{rate:.2f}", shapes),
        )
        print(harmless(line), file=out)


def _line(*cells: str) -> str:
    step, phase, layer, op, module, dtype, *numbers, shapes = cells
    words = f"{step:>4}  {phase:<7}  {layer:>5}  {op:<13}  {module:<24}  {dtype:<9}"
    return "  ".join([words, *(f"{number:>8}" for number in numbers), shapes])


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"
