"""From a checkpoint's matrix to packed rows: quantized types as they are, floats as they are or quantized.

Rows are read, converted and packed some at a time, so that a table of 150,000 rows needs little memory besides its own.
Knows no model: which matrices there are, and where they go, is `weights`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from qwill.checkpoint_values import half_split_order, raw_rows, row_bytes, values_of_rows
from qwill.formats import Checkpoint, TensorInfo
from qwill.quantization import (
    FORMATS,
    GGUF_FORMATS,
    PANEL_ROWS,
    PackedPart,
    WeightFormat,
    gguf_codes,
    pack,
    pack_dense,
    quantize_weight,
    quantized_format,
)
from qwill.quantized_checkpoint import stored_part

__all__ = ["Matrix", "Packing", "pack_tensor", "packed_nbytes"]

KEPT_FORMATS = {**GGUF_FORMATS, **FORMATS}
"""Type of a tensor that is quantized already -> the format that holds it without loss."""

PIECE = 1 << 22
"""Weights that are converted at a time."""


@dataclass(frozen=True)
class Packing:
    """What becomes of a matrix.

    dense: bfloat16 or float32, for weights that are not quantized.
    quant: "none", "int8" or "int4".
    keep: whether matrices that are quantized in the file stay as they are, whatever `quant` says.
    """

    dense: torch.dtype
    quant: str = "none"
    keep: bool = True


@dataclass(frozen=True)
class Matrix:
    """A matrix of a checkpoint, and what the model's layout says of it.

    rotated_heads: the head_dim where rows are to be put back from GGUF's rotary order.
    sensitive: whether int4 quantization is to keep more bits here.
    """

    checkpoint: Checkpoint
    info: TensorInfo
    rotated_heads: int | None = None
    sensitive: bool = False


def packed_nbytes(info: TensorInfo, packing: Packing, *, sensitive: bool) -> int:
    """Bytes that a matrix takes when it is packed."""
    return _format(info, packing, sensitive=sensitive).nbytes(*info.shape)


def _format(info: TensorInfo, packing: Packing, *, sensitive: bool) -> WeightFormat:
    if packing.keep and info.dtype in KEPT_FORMATS:
        return KEPT_FORMATS[info.dtype]
    if packing.quant != "none":
        return quantized_format(packing.quant, sensitive=sensitive)
    return FORMATS[str(packing.dense).removeprefix("torch.")]


def pack_tensor(matrix: Matrix, packing: Packing, advance: Callable[[int], None] = lambda _: None) -> PackedPart:
    """One matrix, packed. `advance` is told the file bytes of each piece as it is done.

    Raises:
        FormatError, WeightsError: the tensor's data or type cannot be read.
    """
    rows, columns = matrix.info.shape
    if packing.keep and matrix.info.dtype in FORMATS:  # used where it lies
        advance(matrix.info.nbytes)
        return stored_part(matrix.info)
    step = rows if matrix.rotated_heads else max(PIECE // columns // PANEL_ROWS, 1) * PANEL_ROWS
    format = _format(matrix.info, packing, sensitive=matrix.sensitive)
    data = torch.empty(format.nbytes(rows, columns), dtype=torch.uint8)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        at = start // PANEL_ROWS * format.panel_bytes(columns)
        packed = _pack_rows(matrix, packing, start, stop).data
        data[at : at + len(packed)] = packed
        advance((stop - start) * row_bytes(matrix.info))
    return PackedPart(format, rows, data)


def _pack_rows(matrix: Matrix, packing: Packing, start: int, stop: int) -> PackedPart:
    info, columns = matrix.info, matrix.info.shape[1]
    order = None if matrix.rotated_heads is None else half_split_order(stop - start, matrix.rotated_heads)
    if packing.keep and info.dtype in GGUF_FORMATS:
        codes, format = gguf_codes(raw_rows(matrix.checkpoint, info, start, stop), info.dtype, stop - start, columns)
        return pack(codes if order is None else codes.rows(order), format)
    values = values_of_rows(matrix.checkpoint, info, start, stop)
    if order is not None:
        values = values[order]
    if packing.quant != "none":
        return quantize_weight(values, packing.quant, sensitive=matrix.sensitive)
    return pack_dense(values.to(packing.dense))
