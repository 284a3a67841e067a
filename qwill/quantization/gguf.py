"""GGUF's quantized types as codes and scales of ours: repacked without loss, never quantized again.

    Q4_0 -> uint4          Q4_1 -> uint4_min      Q4_K -> uint4_super
    Q8_0, Q5_0 -> int8     Q5_1 -> int8_min       Q5_K -> int8_super
    Q6_K, Q3_K -> int8_super16                    Q2_K -> int8_super16_min

Every weight keeps its value to the bit, in fp32: the factors are the same, and so is the order of the roundings.
Knows no file; how blocks are laid out is in `qwill.formats`.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.decoded import Decoded
from qwill.formats.dequantize import BLOCK_DECODERS
from qwill.formats.dtypes import BLOCKS, tensor_nbytes
from qwill.formats.weight_formats import FORMATS, WeightFormat
from qwill.quantization.pack import Codes

__all__ = ["GGUF_FORMATS", "gguf_codes"]

PIECE = 1 << 16
"""Weights that are decoded at a time."""

GGUF_FORMATS: dict[str, WeightFormat] = {
    "Q4_0": FORMATS["uint4"],
    "Q4_1": FORMATS["uint4_min"],
    "Q4_K": FORMATS["uint4_super"],
    "Q5_0": FORMATS["int8"],
    "Q8_0": FORMATS["int8"],
    "Q5_1": FORMATS["int8_min"],
    "Q5_K": FORMATS["int8_super"],
    "Q3_K": FORMATS["int8_super16"],
    "Q6_K": FORMATS["int8_super16"],
    "Q2_K": FORMATS["int8_super16_min"],
}
"""GGUF's type -> the format that holds it without loss."""


def gguf_codes(raw: npt.NDArray[np.uint8], dtype: str, rows: int, columns: int) -> tuple[Codes, WeightFormat]:
    """The codes of a quantized GGUF tensor of `rows` × `columns`, or of any whole rows of one.

    Args:
        raw: (nbytes,) uint8, contiguous; what `Checkpoint.raw` returns.
        dtype: a key of `GGUF_FORMATS`.

    Raises:
        UnsupportedModelError: another type.
        FormatError: when the bytes are not as many as shape and type need, or rows are not whole blocks.
    """
    if dtype not in GGUF_FORMATS:
        what = f"tensors of type {dtype:.40} cannot be repacked"
        raise UnsupportedModelError(what, hint="what can be: " + ", ".join(GGUF_FORMATS))
    _check_size(raw, dtype, rows, columns)
    elements, block_bytes = BLOCKS[dtype]
    format = GGUF_FORMATS[dtype]
    codes = Codes.empty(rows, columns, format)
    blocks = raw.reshape(-1, block_bytes)
    targets = _by_block(codes, len(blocks))
    step = PIECE // elements
    for start in range(0, len(blocks), step):
        piece = slice(start, start + step)
        decoded = BLOCK_DECODERS[dtype](blocks[piece])
        targets["codes"][piece] = decoded.q.view(np.uint8) + np.uint8(format.zero)
        for name, numbers in _scales(decoded).items():
            targets[name][piece] = numbers
    return codes, format


def _scales(decoded: Decoded) -> dict[str, npt.NDArray[np.float16] | npt.NDArray[np.int8]]:
    """The scales that a format has, under the names of `Codes`."""
    every = {
        "scales": decoded.scales,
        "minima": decoded.minimums,
        "super_scales": decoded.super_scale,
        "super_minima": decoded.super_minimum,
    }
    return {name: numbers for name, numbers in every.items() if numbers is not None}


def _by_block(codes: Codes, blocks: int) -> dict[str, npt.NDArray[np.generic]]:
    """Views of the arrays with one row for each block: a row of weights is a row of whole blocks."""
    arrays = {field.name: getattr(codes, field.name) for field in fields(codes)}
    rows = max(blocks, 1)  # an empty tensor has no blocks, and nothing in a row
    return {name: array.numpy().reshape(rows, -1) for name, array in arrays.items() if array is not None}


def _check_size(raw: npt.NDArray[np.uint8], dtype: str, rows: int, columns: int) -> None:
    try:
        need = tensor_nbytes(dtype, (rows, columns))
    except ValueError as error:
        raise FormatError(str(error)) from None
    if raw.size != need:
        raise FormatError(f"{raw.size} bytes are not a tensor of type {dtype} and shape {[rows, columns]}")
