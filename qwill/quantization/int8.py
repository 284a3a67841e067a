"""Weights in 8 bits: whole numbers from −127 to 127, with one fp16 scale for 32 inputs.

Nothing is searched: the error is some 0.5 % of a weight's size, far below what a model notices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwill.formats.weight_formats import FORMATS
from qwill.quantization.checks import check_finite, check_matrix, grouped_pieces
from qwill.quantization.pack import Codes

__all__ = ["quantize_int8"]

PIECE = 1 << 17
"""Weights that are quantized at a time."""

LARGEST = 127


def quantize_int8(weight: Tensor) -> Codes:
    """Codes of format int8 for a matrix (N, K): scale = largest / 127 in fp16, code = weight / scale, half to even.

    Raises:
        WeightsError: not a matrix of floats, or weights that are not finite or too large for fp16 scales.
    """
    check_matrix(weight)
    rows, columns = weight.shape
    format = FORMATS["int8"]
    codes = Codes.empty(rows, columns, format)
    for start, groups in grouped_pieces(weight, PIECE):
        part = codes.rows(slice(start, start + len(groups)))
        scales = (groups.abs().amax(2) / LARGEST).half()  # (rows, G)
        check_finite(scales)
        part.scales.copy_(scales)
        wide = scales.float()[..., None]
        numbers = torch.where(wide > 0, groups / wide, 0).round_().clamp_(-LARGEST, LARGEST)
        part.codes.copy_(numbers.add_(format.zero).flatten(1)[:, :columns])
    return codes
