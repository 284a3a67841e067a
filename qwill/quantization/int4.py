"""Weights in 4 bits: a group of 32 has 16 evenly spaced levels, whose spacing and start are searched for least error.

For each group, in three steps:

1. Several spacings and starts are tried, from one that reaches from the smallest to the largest weight to some that
   cut the ends off. Each gives codes, and for these codes the best scale and minimum follow from least squares. The
   best of all is then refined: new codes for its scale and minimum, again least squares, and so on.
2. Scales are rounded to 7 bits, with one fp16 factor for eight groups. Codes follow the rounded scale, and the minimum
   follows the codes.
3. Minimums are rounded like the scales, and codes are chosen for the last time.

Numbers stand as (32, groups): sums over a group are then sums of rows, which vectorise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qwill.formats.weight_formats import FORMATS, GROUP, RUN_GROUPS
from qwill.quantization.checks import check_finite, check_matrix, grouped_pieces
from qwill.quantization.pack import Codes

__all__ = ["quantize_int4"]

PIECE = 1 << 17
"""Weights that are quantized at a time: few enough for a cache, enough that starting an operation costs little."""

LEVELS = 15
"""The largest code."""

LARGEST = 127
"""The largest code of a scale or minimum."""

STARTS = ((1.0, 0.0), (15.5 / 15, 0.5), (15.5 / 15, 0.0), (14 / 15, -1.0), (16 / 15, 0.5), (14.5 / 15, 0.0))
"""What is tried: code = round(factor × y − shift), where y spreads a group's weights over 0 … 15."""

REFINEMENTS = 2


def quantize_int4(weight: Tensor) -> Codes:
    """Codes of format uint4_super for a matrix (N, K), with scales and minimums of (nearly) the least squared error.

    Raises:
        WeightsError: not a matrix of floats, or weights that are not finite or too large for fp16 scales.
    """
    check_matrix(weight)
    rows, columns = weight.shape
    codes = Codes.empty(rows, columns, FORMATS["uint4_super"])
    room: list[Tensor] = []
    for start, groups in grouped_pieces(weight, PIECE):
        if not room:  # the first piece is the largest
            room = [torch.empty(groups.numel()) for _ in range(3)]
        of_piece = [each[: groups.numel()].view(GROUP, -1) for each in room]
        _quantize_rows(groups, codes.rows(slice(start, start + len(groups))), *of_piece)
    return codes


def _quantize_rows(groups: Tensor, out: Codes, y: Tensor, q: Tensor, product: Tensor) -> None:
    """groups (rows, G, 32) fp32; the others are room for the search, (32, n) each, where n = rows × G."""
    rows, count, _ = groups.shape
    low, high = groups.amin(2).flatten(), groups.amax(2).flatten()
    step = (high - low) / LEVELS
    check_finite(step)
    torch.sub(groups.view(-1, GROUP).t(), low, out=y).mul_(_inverse(step))
    scale, minimum = _search(y, q, product)
    scale = _share((scale * step).view(rows, count), out.scales, out.super_scales).flatten()
    _nearest(y, scale * _inverse(step), minimum, q)
    minimum = (torch.mul(y, step, out=product).sum(0) - q.sum(0).mul_(scale)) / GROUP + low
    minimum = _share(minimum.view(rows, count), out.minima, out.super_minima).flatten()
    _nearest(y, scale * _inverse(step), (minimum - low) * _inverse(step), q)
    out.codes.copy_(q.to(torch.uint8).t().reshape(rows, -1)[:, : out.codes.shape[1]])


def _inverse(values: Tensor) -> Tensor:
    """1 / value; 0 for 0."""
    return torch.where(values > 0, 1 / values, 0)


def _nearest(y: Tensor, scale: Tensor, minimum: Tensor, q: Tensor) -> None:
    """q = the codes of the nearest levels, as floats (32, n), for scale and minimum (n,)."""
    torch.sub(y, minimum, out=q).mul_(_inverse(scale)).round_().clamp_(0, LEVELS)


def _search(y: Tensor, q: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum, (n,) each, of least error, before they are rounded; y (32, n) is spread over 0 … 15."""
    total = y.sum(0)
    sums = torch.empty((3, y.shape[1]))
    best = torch.zeros((3, y.shape[1]))  # scale, minimum, gain
    for factor, shift in STARTS:
        torch.mul(y, factor, out=q).sub_(shift).round_().clamp_(0, LEVELS)
        _improve(best, _least_squares(_sums(q, y, product, sums), total))
    for _ in range(REFINEMENTS):
        _nearest(y, best[0], best[1], q)
        _improve(best, _least_squares(_sums(q, y, product, sums), total))
    return best[0], best[1]


def _improve(best: Tensor, new: Tensor) -> None:
    """Take over what gains more; both (3, n)."""
    torch.where(new[2] > best[2], new, best, out=best)


def _sums(q: Tensor, y: Tensor, product: Tensor, out: Tensor) -> Tensor:
    """Σq, Σq², Σqy of each group, (3, n)."""
    torch.sum(q, 0, out=out[0])
    torch.sum(torch.mul(q, q, out=product), 0, out=out[1])
    torch.sum(torch.mul(q, y, out=product), 0, out=out[2])
    return out


def _least_squares(sums: Tensor, total: Tensor) -> Tensor:
    """Scale and minimum that fit the codes best, and by how much they lower Σy²: (3, n); `total` is Σy."""
    q, qq, qy = sums
    determinant = (GROUP * qq).sub_(q * q).clamp_min_(1e-9)  # 0 where all codes are equal: then the scale is 0
    scale = (GROUP * qy).sub_(q * total).div_(determinant)
    minimum = (total - scale * q).div_(GROUP)
    return torch.stack((scale, minimum, scale * qy + minimum * total))


def _share(values: Tensor, codes: Tensor | None, factors: Tensor | None) -> Tensor:
    """Round values (rows, G) to codes with one factor for a run of eight; writes both and returns what they mean."""
    assert codes is not None
    assert factors is not None
    count = values.shape[1]
    runs = F.pad(values, (0, -count % RUN_GROUPS)).view(len(values), -1, RUN_GROUPS)
    factor = _half_above(runs.abs().amax(2) / LARGEST)
    check_finite(factor)
    factors.copy_(factor)
    wide = factor.float()[..., None]
    numbers = torch.where(wide > 0, runs / wide, 0).round_().flatten(1)[:, :count]
    codes.copy_(numbers)
    return numbers * wide.expand_as(runs).flatten(1)[:, :count]


def _half_above(values: Tensor) -> Tensor:
    """The fp16 at or next above each value, at least 0: rounding down would push the largest code past its limit."""
    rounded = values.half()
    return (rounded.view(torch.int16) + (rounded.float() < values)).to(torch.int16).view(torch.float16)
