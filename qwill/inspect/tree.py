"""The tree of modules as a table; equal layers are folded. Knows nothing of configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from qwill.hub.progress import format_bytes
from qwill.inspect.modules import Module, Tensor, fold, is_number, number_ranges
from qwill.inspect.structure import shape_text
from qwill.inspect.texts import format_count, printable

__all__ = ["tree_table"]

NARROW = 78
"""Below this many columns the table goes without bytes and without ".weight"."""

_MARKS = {"tied copy": "tied"}
"""What stands in the place of a count for a tensor that is not counted, where it is not the role's own name."""


@dataclass(frozen=True)
class _Row:
    depth: int
    label: str
    shape: str
    dtype: str
    count: str
    size: str
    is_module: bool = False


def tree_table(root: Module, width: int) -> Table:
    """Modules and tensors, indented; shapes, dtypes, parameters and, where `width` columns allow it, bytes."""
    narrow = width < NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), header_style="dim")
    table.add_column("name", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("params", no_wrap=True, justify="right")
    if not narrow:
        table.add_column("bytes", no_wrap=True, justify="right")
    for row in _rows(root, 0):
        label = row.label.removesuffix(".weight") if narrow else row.label
        name = Padding(Text(printable(label), style="bold" if row.is_module else ""), (0, 0, 0, 2 * row.depth))
        cells = [Text(row.shape), Text(row.dtype), Text(row.count), Text(row.size)]
        table.add_row(name, *cells[: 3 if narrow else 4])
    return table


def _rows(module: Module, depth: int) -> Iterator[_Row]:
    """What lies in a module: tensors, then folded numbered modules, then the others."""
    for tensor in module.tensors:
        yield _tensor_row(tensor, tensor.label, depth)
    numbered = [child for child in module.children if is_number(child.label)]
    yield from _folded_rows(numbered, module.label, depth)
    for child in module.children:
        if is_number(child.label):
            continue
        if child.is_leaf:
            for tensor in child.tensors:
                yield _tensor_row(tensor, f"{child.label}.{tensor.label}", depth)
        elif all(is_number(grandchild.label) for grandchild in child.children) and not child.tensors:
            yield from _rows(child, depth)
        else:
            yield _module_row(child, child.label, "", depth)
            yield from _rows(child, depth + 1)


def _folded_rows(modules: list[Module], parent: str, depth: int) -> Iterator[_Row]:
    """Each group of equal modules under one line; what a later group shares with the first is not repeated."""
    groups = fold(modules)
    for group in groups:
        count = len(group.numbers)
        label = f"{parent} {number_ranges(group.numbers)}" + (f" ({count} ×)" if count > 1 else "")
        differences = _differences(group.first, groups[0].first, depth + 1)
        if differences:
            label += f", as {groups[0].numbers[0]} except"
        yield _module_row(group.first, label, "each" if count > 1 else "", depth)
        yield from differences or _rows(group.first, depth + 1)


def _differences(module: Module, first: Module, depth: int) -> list[_Row]:
    """Rows for what is other, new or missing in `module`; none where it is so much that only the whole says it."""
    here, there = module.flat, first.flat
    names = [n for n, t in here.items() if n not in there or (t.dtype, t.shape) != (there[n].dtype, there[n].shape)]
    rows = [_tensor_row(here[name], name, depth) for name in names]
    rows += [_Row(depth, name, "", "", "missing", "") for name in there if name not in here]
    return rows if 2 * len(rows) <= len(here) else []


def _module_row(module: Module, label: str, each: str, depth: int) -> _Row:
    return _Row(depth, label, each, "", format_count(module.parameters), format_bytes(module.nbytes), is_module=True)


def _tensor_row(tensor: Tensor, label: str, depth: int) -> _Row:
    count = format_count(tensor.numel) if tensor.is_counted else _MARKS.get(tensor.role, tensor.role)
    return _Row(depth, label, shape_text(tensor.shape), tensor.dtype, count, format_bytes(tensor.nbytes))
