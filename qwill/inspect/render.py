"""A structure on a console: numbers explained, the tree of modules, counts, memory; or one layer; or every tensor.

Width-aware: at 80 columns nothing is cut, below that columns are left out and texts are wrapped. All texts from files
are shown without control characters and are never read as markup. Reads nothing and computes nothing of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from qwill.hub.progress import format_bytes
from qwill.inspect.facts import facts
from qwill.inspect.layer import Step, layer_steps, letters
from qwill.inspect.listing import tensor_lines
from qwill.inspect.memory import BYTES_OF_32, KV_STEP, kv_memory, weight_memory
from qwill.inspect.structure import Mismatch, Structure, shape_text
from qwill.inspect.texts import format_count, printable
from qwill.inspect.tree import tree_table

__all__ = ["render_structure"]

_WARNINGS = {
    "config": "there is no configuration that can be read",
    "missing": "tensors are missing",
    "unused": "the model has no use for these tensors",
    "wrong shape": "tensors are of another shape than the configuration asks for",
}

LISTED = 8
"""At most so many tensors of one mismatch are named."""


def render_structure(
    structure: Structure, console: Console, *, layer: int | None = None, tensors: bool = False
) -> None:
    """Print a structure: the overview, or with `layer` one layer as a worked example, or with `tensors` all of them.

    Raises:
        SettingError: there is no such layer.
    """
    steps = None if layer is None else layer_steps(structure, layer)
    _print_title(structure, console)
    if steps is not None:
        _print_layer(structure, steps, f"Layer {layer}", console)
    if tensors:
        _heading("Tensors", console)
        lines = tensor_lines(structure.tensors, console.width if console.is_terminal else None)
        console.out("\n".join(lines), highlight=False)
    if steps is None and not tensors:
        _print_overview(structure, console)
    _print_mismatches(structure.mismatches, console)


def _print_title(structure: Structure, console: Console) -> None:
    size = format_bytes(sum(structure.files.values()))
    count = len(structure.files)
    files = "1 file" if count == 1 else f"{count} files"
    origin = "" if structure.source == "local" else f", headers read from {structure.source}"
    name = Text(printable(structure.name), style="bold")
    console.print(Text.assemble(name, Text(f"  {structure.format}, {files}, {size}{origin}", style="dim")))


def _print_overview(structure: Structure, console: Console) -> None:
    rows = [(fact.label, fact.value, fact.meaning) for fact in facts(structure)]
    _print_rows("Configuration", rows, console)
    _heading("Modules", console)
    _print_indented(tree_table(structure.root, console.width), console)
    _print_rows("Parameters", _parameter_rows(structure), console)
    _print_rows("Memory", _memory_rows(structure), console)


def _heading(text: str, console: Console) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _print_indented(renderable: RenderableType, console: Console) -> None:
    """Two columns to the right, and without the blanks that a table has at the end of its lines."""
    lines = console.render_lines(Padding(renderable, (0, 0, 0, 2), expand=False), pad=False)
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        line.append(Segment.line())
    console.print(Segments(chain.from_iterable(lines)), end="")


def _print_rows(heading: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Label, value and explanation in three columns; the last one wraps. Without rows, nothing."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for label, value, meaning in rows:
        table.add_row(Text(label), Text(value), Text(printable(meaning)))
    if table.row_count:
        _heading(heading, console)
        _print_indented(table, console)


def _parameter_rows(structure: Structure) -> list[tuple[str, str, str]]:
    counts, config = structure.parameters, structure.config
    layers = f"{config.num_layers} layers and the last norm" if config else "all but embedding and head"
    tied = config is not None and config.tie_word_embeddings
    head = (
        ("lm_head", "tied", "the embedding's matrix again") if tied else ("lm_head", format_count(counts.lm_head), "")
    )
    rows = [
        ("embedding", format_count(counts.embedding), _share(counts.embedding, counts.total)),
        (
            "language model",
            format_count(counts.language_model),
            f"{_share(counts.language_model, counts.total)}; {layers}",
        ),
        head if tied else (*head[:2], _share(counts.lm_head, counts.total)),
        ("total", format_count(counts.total), f"{counts.total:,}"),
    ]
    left_out = [f"{t.name} ({t.role})" for t in structure.tensors if not t.is_counted]
    if left_out:
        rows.append(("in the files", format_count(counts.stored), f"not counted: {_listed(left_out, 2)}"))
    return rows


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _memory_rows(structure: Structure) -> list[tuple[str, str, str]]:
    return [_files_row(structure), *_weight_rows(structure), *_kv_rows(structure)]


def _files_row(structure: Structure) -> tuple[str, str, str]:
    dtypes: dict[str, int] = {}
    for tensor in structure.tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.nbytes
    names = ", ".join(sorted(dtypes, key=lambda name: -dtypes[name]))
    bits = 8 * sum(dtypes.values()) / max(structure.parameters.stored, 1)
    return "files as they are", format_bytes(sum(structure.files.values())), f"{names}: {bits:.3g} bits a weight"


def _weight_rows(structure: Structure) -> list[tuple[str, str, str]]:
    rows = []
    for name, size in weight_memory(structure).items():
        matrix, other = BYTES_OF_32[name]
        how = f"{matrix / 32:g} bytes a weight"
        if matrix != other:
            how += ": groups of 32 with an fp16 scale; norms and biases in fp32"
        rows.append((f"weights in {name}", format_bytes(size), how))
    return rows


def _kv_rows(structure: Structure) -> list[tuple[str, str, str]]:
    kv = kv_memory(structure)
    if kv is None:
        return []
    return [
        ("KV cache, bf16", format_bytes(kv.per_token), "for each token"),
        ("", format_bytes(kv.per_step), f"for {KV_STEP:,} tokens"),
        ("", format_bytes(kv.at_full_context), f"for {kv.context:,} tokens, the full context of one request"),
    ]


def _print_layer(structure: Structure, steps: list[Step], heading: str, console: Console) -> None:
    assert structure.config is not None
    _heading(heading, console)
    _print_indented(Text(letters(structure.config), style="dim"), console)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("step", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("weight and meaning", overflow="fold")
    for step in steps:
        lines = [Text(line) for line in _weight_lines(step)]
        what = Text("\n").join([*lines, Text(step.meaning, style="dim")])
        table.add_row(Text(step.label, style="bold" if step.letters else ""), Text(step.output), what)
    _print_indented(table, console)


def _weight_lines(step: Step) -> list[str]:
    """The weight's shape in letters and numbers, as stored; the bias below it."""
    if not step.letters:
        return []
    if not step.tensors:
        return [f"{step.letters}  missing"]
    lines = []
    for tensor in step.tensors:
        start = f"{step.letters} = " if tensor.label == "weight" else f"+ {tensor.label} "
        lines.append(f"{start}{shape_text(tensor.shape)} {tensor.dtype}")
    return lines


def _print_mismatches(mismatches: Iterable[Mismatch], console: Console) -> None:
    for mismatch in mismatches:
        count = len(mismatch.details)
        console.print()
        console.print(Text.assemble(Text("warning: ", style="bold yellow"), _WARNINGS[mismatch.kind]))
        for detail in mismatch.details[:LISTED]:
            _print_indented(Text(printable(detail)), console)
        if count > LISTED:
            _print_indented(Text(f"and {count - LISTED} more"), console)


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
