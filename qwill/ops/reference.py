"""Every op in plain PyTorch: the definition that other implementations are judged by, and one that runs anywhere.

Formulas and contracts stand in `qwill.ops`. Numerics follow `transformers` to the cast. Nothing is written in place
except the KV cache. Knows no model.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qwill.batch import Batch, ContextSpan
from qwill.ops.quantized import packed_linear, packed_rows, round_to_int8
from qwill.quantization import PackedWeight

FEW_ROWS = 16
"""Up to here a linear layer is limited by reading the weight, beyond by arithmetic."""


def embedding(token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
    """See `qwill.ops.embedding`."""
    if isinstance(weight, PackedWeight):
        return packed_rows(token_ids, weight)  # (T, C)
    return weight[token_ids]  # (T, C)


def linear(
    x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """See `qwill.ops.linear`."""
    if residual is not None:
        return residual + linear(x, weight, bias)
    if isinstance(weight, PackedWeight):
        return packed_linear(x, weight, bias)
    if x.device.type != "cpu" or x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    if len(x) > FEW_ROWS and not _has_fast_16_bit_gemm():
        wide = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return wide.to(x.dtype)
    if len(x) > FEW_ROWS:
        return F.linear(x, weight, bias)
    with _without_onednn:
        return F.linear(x, weight, bias)


def _has_fast_16_bit_gemm() -> bool:
    """Below AVX-512, torch's bf16 and fp16 matrix products run at a fifth of the speed of fp32's."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX", "AVX2")


class _WithoutOneDnn:
    """oneDNN reads a bf16 weight at half the memory's speed when there are few rows; torch's own product does not.

    The switch is the process's: the first of several threads turns it off, and the last restores what was.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_on = True
        self._switch: Any = torch.backends.mkldnn

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_on, self._switch.enabled = self._switch.enabled, False
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._switch.enabled = self._was_on


_without_onednn = _WithoutOneDnn()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `qwill.ops.rms_norm`."""
    wide = x.float()
    mean_square = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(mean_square + eps)).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `qwill.ops.rope`."""
    low, high = x.chunk(2, dim=-1)  # (T, H, D // 2) (T, H, D // 2)
    turned = torch.cat((-high, low), dim=-1)  # (T, H, D)
    return x * cos[:, None] + turned * sin[:, None]  # (T, H, D)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """See `qwill.ops.norm_rope`."""
    return rope(rms_norm(x, weight, eps), cos, sin)


def rotary_angles(positions: Tensor, inv_freq: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
    """See `qwill.ops.rotary_angles`."""
    half = positions[:, None].float() * inv_freq  # (T, D // 2)
    angles = torch.cat((half, half), dim=-1)  # (T, D)
    return angles.cos() * amplitude, angles.sin() * amplitude


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `qwill.ops.silu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)  # (T, F) (T, F)
    return F.silu(gate) * up  # (T, F)


def attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch, layer: int) -> Tensor:
    """See `qwill.ops.attention`."""
    if batch.kv_cache is not None:
        keys, values = map(_Rows, batch.kv_cache.layer(layer), batch.kv_cache.scales(layer))
        keys.write(batch.slot_mapping, k)
        values.write(batch.slot_mapping, v)
    else:
        keys, values = _Rows(k), _Rows(v)
    if len(batch.spans) == 1:
        return _attend(q, keys, values, batch.spans[0])  # (T, Hq, D)
    return torch.cat([_attend(q[span.rows], keys, values, span) for span in batch.spans])


def rows(x: Tensor, places: Tensor) -> Tensor:
    """See `qwill.ops.rows`."""
    return x[places]


@dataclass(frozen=True)
class _Rows:
    """Keys or values by slot, (N, Hkv, D) in the cache's dtype, and the scales (N, Hkv) of int8 codes."""

    rows: Tensor
    scales: Tensor | None = None

    def write(self, slots: Tensor, x: Tensor) -> None:
        """x (T, Hkv, D) to T slots."""
        if self.scales is not None:
            x, scales = round_to_int8(x.float())  # (T, Hkv, D) (T, Hkv)
            self.scales.index_copy_(0, slots, scales)
        self.rows.index_copy_(0, slots, x.to(self.rows.dtype))

    def read(self, slots: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The rows of some slots in the activations' dtype."""
        if self.scales is None:
            return self.rows[slots].to(dtype)
        return (self.rows[slots] * self.scales[slots][..., None]).to(dtype)


def _attend(q: Tensor, keys: _Rows, values: _Rows, span: ContextSpan) -> Tensor:
    """One request: the last rows of a context of `span.length` tokens look back over it.

    The query heads that share a key-value head are laid out as extra rows of it, so keys are never repeated.
    """
    new, heads, head_dim = q.shape
    context_keys = keys.read(span.slots, q.dtype).transpose(0, 1)  # (Hkv, N, D)
    context_values = values.read(span.slots, q.dtype).transpose(0, 1)  # (Hkv, N, D)
    kv_heads = len(context_keys)
    grouped = q.view(new, kv_heads, -1, head_dim).permute(1, 2, 0, 3).flatten(1, 2)  # (Hkv, Hq // Hkv * T, D)
    mask = _causal_mask(new, span.length, q.device).repeat(heads // kv_heads, 1) if new > 1 else None
    out = _scaled_dot_product(grouped[None], context_keys[None], context_values[None], mask)[0]
    return out.view(kv_heads, -1, new, head_dim).permute(2, 0, 1, 3).reshape(new, heads, head_dim)  # (T, Hq, D)


def _causal_mask(new: int, length: int, device: torch.device) -> Tensor:
    """True where the query may look: (new, length). The last query sees the whole context."""
    return torch.ones(new, length, dtype=torch.bool, device=device).tril(length - new)


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if q.dtype != torch.float32 and q.device.type == "cpu" and q.shape[2] > FEW_ROWS and not _has_fast_16_bit_gemm():
        return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask)
