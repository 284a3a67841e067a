"""The reference for packed weights: what the integer kernels compute, step by step, in PyTorch.

Activations become int8, per token and group of 32 inputs; each group's products are summed exactly, groups in float64.
Slow: it unpacks the whole weight at each call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwill.quantization import GROUP, RUN_GROUPS, Codes, PackedPart, PackedWeight, WeightFormat, unpack, unpack_dense

__all__ = ["integer_products", "packed_linear", "packed_rows", "quantize_activations", "round_to_int8"]


def packed_rows(token_ids: Tensor, weight: PackedWeight) -> Tensor:
    """Rows of a packed table (V, C): token_ids (T,) -> (T, C) fp32."""
    return weight.dequantize()[token_ids]  # (T, C)


def packed_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x (T, K) fp32, weight (N, K), bias (N,) -> (T, N)."""
    y = torch.cat([_part_linear(x, part, weight.columns) for part in weight.parts], dim=1)  # (T, N)
    return y if bias is None else y + bias


def _part_linear(x: Tensor, part: PackedPart, columns: int) -> Tensor:
    if part.format.is_dense:
        return (x.double() @ unpack_dense(part, columns).double().T).to(x.dtype)
    codes, scales = quantize_activations(x)  # (T, G, 32) (T, G)
    weight = unpack(part, columns)
    w_scales, w_minima = _factors(weight, part.format)  # (N, G, halves) each
    products = integer_products(codes, weight, part.format)  # (T, N, G, halves)
    y = torch.einsum("tngh,ngh,tg->tn", products.double(), w_scales.double(), scales.double())
    if w_minima is not None:
        halves = codes.view(*codes.shape[:2], part.format.scales_per_group, -1).sum(-1)  # (T, G, halves)
        y += torch.einsum("tgh,ngh,tg->tn", halves.double(), w_minima.double(), scales.double())
    return y.to(x.dtype)  # (T, N)


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (T, K) fp32 -> int codes (T, G, 32) in -127 … 127 and scales (T, G) fp32: x ≈ scale · code.

    A group with a value that is not finite has a scale of NaN.
    """
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)  # (T, G, 32)
    codes, scales = round_to_int8(groups)
    return codes.int(), scales


def round_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., K) fp32 -> int8 codes (..., K) and one fp32 scale (...) for each K: the greatest magnitude / 127.

    Where a value is not finite the scale is NaN.
    """
    greatest = x.abs().amax(-1)
    # A division: `127 / tensor` would be a rounded reciprocal times 127.
    inverse = torch.where(greatest > 1e-30, torch.full_like(greatest, 127) / greatest, 0.0)
    codes = (x * inverse[..., None]).round().nan_to_num(0.0).to(torch.int8)
    return codes, torch.where(greatest.isfinite(), greatest / 127, torch.nan)


def integer_products(codes: Tensor, weight: Codes, format: WeightFormat) -> Tensor:
    """Sums over each scale's inputs of activation code × (weight code - zero), exact: (T, N, G, halves) int32."""
    padded = torch.nn.functional.pad(weight.codes.int(), (0, -weight.codes.shape[1] % GROUP), value=format.zero)
    halves = (format.scales_per_group, GROUP // format.scales_per_group)
    w = (padded - format.zero).view(len(padded), -1, *halves)  # (N, G, halves, inputs)
    x = codes.view(*codes.shape[:2], *halves)  # (T, G, halves, inputs)
    return torch.einsum("tghi,nghi->tngh", x.double(), w.double()).int()


def _factors(weight: Codes, format: WeightFormat) -> tuple[Tensor, Tensor | None]:
    """Scales and minima as numbers, fp32 (N, G, halves)."""
    per_group = format.scales_per_group
    shared = RUN_GROUPS * per_group

    def numbers(codes: Tensor, supers: Tensor | None) -> Tensor:
        wide = codes.float()
        if supers is not None:
            wide = wide * supers.float().repeat_interleave(shared, dim=1)[:, : wide.shape[1]]
        return wide.view(len(wide), -1, per_group)

    minima = None if weight.minima is None else numbers(weight.minima, weight.super_minima)
    return numbers(weight.scales, weight.super_scales), minima
