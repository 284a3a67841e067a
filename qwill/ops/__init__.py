"""The operations a model is made of: one name, formula and contract each.

The model calls these and nothing else. Letters: T new tokens of the step, C hidden_size, Hq and Hkv heads, D head_dim,
F intermediate_size, V vocab_size, K inputs and N outputs of a linear layer. All results are new tensors.
"""

from __future__ import annotations

from torch import Tensor

from qwill.batch import Batch
from qwill.ops import reference

__all__ = ["attention", "embedding", "linear", "rms_norm", "rope", "silu_and_mul"]


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table: y[t] = weight[token_ids[t]].

    token_ids (T,) int64, weight (V, C) -> (T, C).
    """
    return reference.embedding(token_ids, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x Wᵀ + b, summed in fp32, rounded once to x's dtype.

    x (T, K), weight (N, K), bias (N,) -> (T, N).
    """
    return reference.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension (arXiv:1910.07467): y = w · x / sqrt(mean(x²) + eps).

    Normalized in fp32, cast to x's dtype, then multiplied by the weight, in that order.
    x (..., C), weight (C,) -> (..., C).
    """
    return reference.rms_norm(x, weight, eps)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864), half-split: dimension i turns together with dimension i + D/2.

    x (T, H, D), cos and sin (T, D) in x's dtype -> (T, H, D).
    """
    return reference.rope(x, cos, sin)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """The gate of SwiGLU (arXiv:2002.05202): y = silu(gate) · up.

    gate_up (T, 2 F), gate first -> (T, F).
    """
    return reference.silu_and_mul(gate_up)


def attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch, layer: int) -> Tensor:
    """Causal grouped-query attention of each request over its own context: softmax(q kᵀ / sqrt(D)) v.

    Writes k and v to the cache of `layer` first; without a cache the context is this step's own k and v.
    q (T, Hq, D), k and v (T, Hkv, D) -> (T, Hq, D).
    """
    return reference.attention(q, k, v, batch, layer)
