"""The weight of a linear layer, packed for the kernels: one part, or several with rows of different formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qwill.formats.weight_formats import GROUP, PANEL_ROWS, RUN_GROUPS, WeightFormat
from qwill.quantization.pack import Codes, PackedPart, unpack, unpack_dense

__all__ = ["PackedWeight", "unpacked_rows", "values_of"]

PIECE = 1 << 20
"""Weights that are dequantized at a time."""


@dataclass(frozen=True, eq=False)  # one object is one weight: kernels keep what they know of it
class PackedWeight:
    """(N, K): the rows of its parts one after another. A fused matrix may hold parts of different formats.

    Attributes:
        columns: K, the inputs of every part.
    """

    columns: int
    parts: tuple[PackedPart, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        return sum(part.rows for part in self.parts), self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.data.nbytes for part in self.parts)

    @property
    def bits_per_weight(self) -> float:
        """Bits that one weight takes, with its share of scales and padding."""
        rows, columns = self.shape
        return 8 * self.nbytes / max(rows * columns, 1)

    def dequantize(self) -> Tensor:
        """The weights, fp32 (N, K)."""
        out = torch.empty(self.shape, dtype=torch.float32)
        start = 0
        for part in self.parts:
            _dequantize(part, out[start : start + part.rows])
            start += part.rows
        return out


def _dequantize(part: PackedPart, out: Tensor) -> None:
    columns = out.shape[1]
    step = max(1, PIECE // (PANEL_ROWS * max(columns, 1)))
    panel_bytes = part.format.panel_bytes(columns)
    for panel in range(0, -(-part.rows // PANEL_ROWS), step):
        rows = out[panel * PANEL_ROWS : (panel + step) * PANEL_ROWS]
        data = part.data[panel * panel_bytes : (panel + step) * panel_bytes]
        piece = PackedPart(part.format, len(rows), data)
        if part.format.is_dense:
            rows.copy_(unpack_dense(piece, columns))
        else:
            rows.copy_(values_of(unpack(piece, columns), part.format))


def unpacked_rows(part: PackedPart, columns: int, start: int, stop: int) -> Tensor:
    """Rows `start` … `stop` of a part, fp32; only the panels that hold them are read."""
    first, last = start // PANEL_ROWS, -(-stop // PANEL_ROWS)
    panel_bytes = part.format.panel_bytes(columns)
    rows = min(last * PANEL_ROWS, part.rows) - first * PANEL_ROWS
    panels = PackedPart(part.format, rows, part.data[first * panel_bytes : last * panel_bytes])
    out = torch.empty((rows, columns), dtype=torch.float32)
    _dequantize(panels, out)
    return out[start - first * PANEL_ROWS :][: stop - start]


def values_of(codes: Codes, format: WeightFormat) -> Tensor:
    """scale × (code − zero) + minimum, fp32 (N, K): each product and the sum are rounded once."""
    columns = codes.codes.shape[1]
    values = codes.codes.float().sub_(format.zero)
    scales = _spread(codes.scales, codes.super_scales, columns, format)
    values *= scales
    if codes.minima is not None:
        values += _spread(codes.minima, codes.super_minima, columns, format)
    return values


def _spread(scales: Tensor, supers: Tensor | None, columns: int, format: WeightFormat) -> Tensor:
    """A group's scale for each of its inputs, fp32 (N, K)."""
    wide = scales.float()
    if supers is not None:
        shared = RUN_GROUPS * format.scales_per_group
        wide *= supers.float().repeat_interleave(shared, dim=1)[:, : wide.shape[1]]
    return wide.repeat_interleave(GROUP // format.scales_per_group, dim=1)[:, :columns]
