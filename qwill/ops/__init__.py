"""The operations a model is made of: one name, formula and contract each.

The model calls these and nothing else. Each has two implementations of one signature: `reference` (plain PyTorch: any
device, any dtype) and `native` (kernels in `csrc/`: fp32 activations on the CPU, packed weights). `backend` chooses.

Letters: T new tokens of the step, C hidden_size, Hq and Hkv heads, D head_dim, F intermediate_size, V vocab_size, K
inputs and N outputs of a linear layer, R rows. All results are new tensors.
"""

from __future__ import annotations

from torch import Tensor

from qwill.batch import Batch
from qwill.ops.backend import native_ops, ops_for, ops_for_weight, warn_if_not_built, why_no_native_ops
from qwill.quantization import PackedWeight

__all__ = [
    "attention",
    "embedding",
    "linear",
    "native_ops",
    "norm_rope",
    "rms_norm",
    "rope",
    "rotary_angles",
    "rows",
    "silu_and_mul",
    "warn_if_not_built",
    "why_no_native_ops",
]


def embedding(token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
    """Rows of a table: y[t] = weight[token_ids[t]].

    token_ids (T,) int64, weight (V, C) -> (T, C), in fp32 where the table is packed, else in its dtype.
    """
    return ops_for_weight(weight).embedding(token_ids, weight)  # type: ignore[no-any-return]


def linear(
    x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """y = x Wᵀ + b (+ residual), summed in fp32, rounded once to x's dtype.

    Where the weight's format has codes of 4 or 8 bits, x is rounded to int8 per token and group of 32 inputs first.
    x (T, K), weight (N, K), bias (N,), residual (T, N) -> (T, N).
    """
    return ops_for(x).linear(x, weight, bias, residual)  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension (arXiv:1910.07467): y = w · x / sqrt(mean(x²) + eps).

    Normalized in fp32, cast to x's dtype, then multiplied by the weight, in that order.
    x (T, C) or (T, H, D), weight (C,) or (D,) -> as x.
    """
    return ops_for(x).rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def rotary_angles(positions: Tensor, inv_freq: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position times each frequency, times `amplitude`; the second half repeats the first.

    positions (T,) int64, inv_freq (D // 2,) fp32, radians per position -> cos (T, D), sin (T, D), fp32.
    """
    return ops_for(inv_freq).rotary_angles(positions, inv_freq, amplitude)  # type: ignore[no-any-return]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864), half-split: dimension i turns together with dimension i + D/2.

    x (T, H, D), cos and sin (T, D) in x's dtype -> (T, H, D).
    """
    return ops_for(x).rope(x, cos, sin)  # type: ignore[no-any-return]


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """`rms_norm` of each head, then `rope`, in one pass.

    x (T, H, D), weight (D,), cos and sin (T, D) in x's dtype -> (T, H, D).
    """
    return ops_for(x).norm_rope(x, weight, eps, cos, sin)  # type: ignore[no-any-return]


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """The gate of SwiGLU (arXiv:2002.05202): y = silu(gate) · up.

    gate_up (T, 2 F), gate first -> (T, F).
    """
    return ops_for(gate_up).silu_and_mul(gate_up)  # type: ignore[no-any-return]


def attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch, layer: int) -> Tensor:
    """Causal grouped-query attention of each request over its own context: softmax(q kᵀ / sqrt(D)) v.

    Writes k and v to the cache of `layer` first; without a cache the context is this step's own k and v.
    q (T, Hq, D), k and v (T, Hkv, D) -> (T, Hq, D).
    """
    return ops_for(q).attention(q, k, v, batch, layer)  # type: ignore[no-any-return]


def rows(x: Tensor, places: Tensor) -> Tensor:
    """Some rows: y[r] = x[places[r]].

    x (T, C), places (R,) int64 -> (R, C).
    """
    return ops_for(x).rows(x, places)  # type: ignore[no-any-return]
