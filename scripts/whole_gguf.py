"""Make an unquantized GGUF file out of a quantized one: every tensor dequantized to fp32, and its channels shuffled.

    scripts/whole_gguf.py IN.gguf OUT.gguf

For comparing ways to quantize where only quantized weights can be had. Dequantized weights lie on the grid of their old
blocks of 32 inputs, and a format with the same blocks would find that grid again and look better than it is. So the
channels are put into another order, which changes nothing of what the model computes: hidden channels, inner channels
of each feed-forward, and channels of each value head. Blocks of the new order mix values of many old ones. What the old
quantization lost stays lost.

Takes dense models of the qwen2, qwen3 and llama architectures. Reads and writes with the `gguf` package; knows nothing
of our own readers.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]

SEED = 20260501
OF_THE_FILE = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
"""Keys that the writer sets itself, or that were about the old file."""

HIDDEN, INNER, VALUES, QUERIES = "hidden", "inner", "values", "queries"
AXES: dict[str, tuple[str, ...]] = {
    "token_embd.weight": ("", HIDDEN),
    "output.weight": ("", HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "attn_norm.weight": (HIDDEN,),
    "attn_q.weight": ("", HIDDEN),
    "attn_q.bias": ("",),
    "attn_q_norm.weight": ("",),
    "attn_k.weight": ("", HIDDEN),
    "attn_k.bias": ("",),
    "attn_k_norm.weight": ("",),
    "attn_v.weight": (VALUES, HIDDEN),
    "attn_v.bias": (VALUES,),
    "attn_output.weight": (HIDDEN, QUERIES),
    "attn_output.bias": (HIDDEN,),
    "ffn_norm.weight": (HIDDEN,),
    "ffn_gate.weight": (INNER, HIDDEN),
    "ffn_up.weight": (INNER, HIDDEN),
    "ffn_down.weight": (HIDDEN, INNER),
}
"""Tensor, without its layer -> what the channels of each axis are; empty for those that keep their order."""


@dataclass(frozen=True)
class Shape:
    """The sizes that decide which channels belong together."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


def main(arguments: list[str]) -> int:
    """See the top of this file. Returns the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    write_whole(Path(arguments[0]), Path(arguments[1]))
    return 0


def write_whole(source: Path, target: Path) -> None:
    """Write `target` from `source`; it appears when it is complete.

    Raises:
        ValueError: a tensor is none of a dense model's.
    """
    reader = gguf.GGUFReader(source)
    shape = shape_of(reader)
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, text_of(reader, "general.architecture"))
    for field in reader.fields.values():
        if not field.name.startswith(OF_THE_FILE):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, shuffled(tensor.name, values, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def shape_of(reader: gguf.GGUFReader) -> Shape:
    """The sizes in a file's metadata."""
    architecture = text_of(reader, "general.architecture")

    def number(key: str, default: int = 0) -> int:
        field = reader.fields.get(f"{architecture}.{key}")
        return int(field.contents()) if field else default

    hidden, heads = number("embedding_length"), number("attention.head_count")
    return Shape(
        hidden,
        number("feed_forward_length"),
        heads,
        number("attention.head_count_kv", heads),
        number("attention.value_length", number("attention.key_length", hidden // heads)),
    )


def text_of(reader: gguf.GGUFReader, key: str) -> str:
    """A text of the metadata."""
    return str(reader.fields[key].contents())


def shuffled(name: str, values: Values, shape: Shape) -> Values:
    """A tensor with the channels of its axes in their new order."""
    layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)", name).groups()  # type: ignore[union-attr]
    if kind not in AXES or len(AXES[kind]) != values.ndim:
        raise ValueError(f"{name} is no tensor of a dense model")
    for axis, channels in enumerate(AXES[kind]):
        if channels:
            values = np.take(values, order_of(channels, int(layer or 0), shape), axis)
    return np.ascontiguousarray(values)


def order_of(channels: str, layer: int, shape: Shape) -> Order:
    """Which old channel stands at each new place. All layers share the order of hidden channels, and no other."""
    if channels == HIDDEN:
        return np.random.default_rng(SEED).permutation(shape.hidden)
    random: Any = np.random.default_rng((SEED, layer, channels == INNER))
    if channels == INNER:
        return random.permutation(shape.inner)  # type: ignore[no-any-return]
    orders = [random.permutation(shape.head_dim) for _ in range(shape.kv_heads)]
    # A query head reads the values of its key-value head, so that its outputs come in the same order.
    repeats = shape.heads // shape.kv_heads if channels == QUERIES else 1
    heads = [order for order in orders for _ in range(repeats)]
    return np.concatenate([order + head * shape.head_dim for head, order in enumerate(heads)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
