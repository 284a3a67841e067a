"""The modules that hold weights (Embedding, Linear, RMSNorm) and the rotary angles. Maths lives in `qwill.ops`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qwill import ops
from qwill.config import ModelConfig, RopeScaling
from qwill.quantization import PackedWeight

__all__ = ["Embedding", "Linear", "RMSNorm", "RotaryAngles", "inverse_frequencies"]


class Embedding(nn.Module):
    """Token ids (T,) -> hidden states (T, C). Its weight (V, C) may be packed, and the lm_head's too."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight: Tensor | PackedWeight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids (T,) int64 -> (T, C)."""
        return ops.embedding(token_ids, self.weight)


class Linear(nn.Module):
    """(T, in) -> (T, out). Weight (out, in), a tensor or a `PackedWeight`; bias (out,) or None."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight: Tensor | PackedWeight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x (T, in) -> (T, out), added to `residual` (T, out) where there is one."""
        return ops.linear(x, self.weight, self.bias, residual)


class RMSNorm(nn.Module):
    """Norm over the last dimension. Weight (C,)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x (..., C) -> (..., C)."""
        return ops.rms_norm(x, self.weight, self.eps)


class RotaryAngles(nn.Module):
    """Positions -> cosines and sines. Angles are fp32 whatever the model's dtype; only the results are cast.

    bf16 holds whole numbers only up to 256, so positions or frequencies in bf16 are wrong soon after.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # A plain attribute, not a buffer: `model.to(torch.bfloat16)` must not reach it.
        self.inv_freq = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.amplitude = config.rope_scaling.attention_factor if config.rope_scaling else 1.0

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions (T,) int64 -> cos (T, D), sin (T, D) in `dtype`; the second half repeats the first."""
        if self.inv_freq.device != positions.device:
            self.inv_freq = self.inv_freq.to(positions.device)
        cos, sin = ops.rotary_angles(positions, self.inv_freq, self.amplitude)  # (T, D) (T, D)
        return cos.to(dtype), sin.to(dtype)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each pair of dimensions, fp32 (D // 2,): theta^(-2i/D), stretched by `scaling`."""
    inv_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim))
    if scaling is None:
        return inv_freq
    if scaling.kind == "linear":
        return inv_freq / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(inv_freq, scaling)
    return _yarn_frequencies(inv_freq, theta, scaling)


def _llama3_frequencies(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, and those between are blended (arXiv:2407.21783)."""
    context = scaling.original_max_position_embeddings
    turns = context * inv_freq / (2 * math.pi)  # full turns within the trained context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling.factor


def _yarn_frequencies(inv_freq: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """NTK-by-parts of YaRN (arXiv:2309.00071, section 3.2): few turns in the trained context: slowed; many: kept."""
    half = len(inv_freq)

    def dimension_with(turns: float) -> float:
        return half * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(dimension_with(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_with(scaling.beta_slow)), 2 * half - 1)
    slow = ((torch.arange(half, dtype=torch.float32, device="cpu") - low) / max(high - low, 0.001)).clamp(0, 1)
    return (1 - slow) * inv_freq + slow * inv_freq / scaling.factor
