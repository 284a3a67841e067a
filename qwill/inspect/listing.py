"""Every tensor on a line: name in the file, dtype, shape, bytes, offset. Knows nothing of modules.

Where a terminal is too narrow for the lines, the name has a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from qwill.inspect.modules import Tensor
from qwill.inspect.structure import shape_text
from qwill.inspect.texts import printable

__all__ = ["tensor_lines"]


def tensor_lines(tensors: Sequence[Tensor], width: int | None) -> list[str]:
    """Aligned lines in the order of the files, with a header; `width` in columns, None for no limit.

    The column with the file's name is there only when there are several files.
    """
    several = len({tensor.file for tensor in tensors}) > 1
    rows = [("name", "dtype", "shape", "bytes", "offset", "file" if several else "")]
    rows += [_row(tensor, several) for tensor in tensors]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    if width is None or max(map(cell_len, lines)) <= width:
        return lines
    rest = widths[1:]
    return [line for row in rows for line in (row[0], "    " + _line(row[1:], rest, numbers=(2, 3)))]


def _row(tensor: Tensor, several: bool) -> tuple[str, str, str, str, str, str]:
    sizes = (shape_text(tensor.shape), f"{tensor.nbytes}", f"{tensor.offset}")
    return printable(tensor.stored_name), tensor.dtype, *sizes, printable(tensor.file) if several else ""


def _line(cells: Iterable[str], widths: Sequence[int], numbers: Sequence[int] = (3, 4)) -> str:
    """Cells side by side; those at the positions `numbers` are aligned to the right."""
    parts = []
    for position, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - cell_len(cell))
        parts.append(gap + cell if position in numbers else cell + gap)
    return "  ".join(parts).rstrip()
