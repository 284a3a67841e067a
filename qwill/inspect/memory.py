"""How much memory a model takes: weights in four number formats, and the KV cache.

Assumptions, which the print-out repeats:

    fp32, bf16   every parameter takes 4 or 2 bytes
    int8         matrices (embedding and head too) in groups of 32 with one fp16 scale: 1 + 2/32 = 1.0625 bytes a weight
    int4         the same with half a byte a weight: 0.5 + 2/32 = 0.5625 bytes; norms and biases are fp32 in both
    KV cache     keys and values of every layer and kv head in bf16

Each parameter is counted once. Activations and the program itself come on top. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwill.inspect.structure import Structure

__all__ = ["KVMemory", "kv_memory", "weight_memory"]

KV_STEP = 1024
"""Tokens in the print-out's "per 1,024 tokens"."""

BYTES_OF_32: dict[str, tuple[int, int]] = {"fp32": (128, 128), "bf16": (64, 64), "int8": (34, 128), "int4": (18, 128)}
"""Number format -> bytes that 32 weights of a matrix take, and 32 elements of a norm or bias."""


@dataclass(frozen=True)
class KVMemory:
    """Bytes of the KV cache in bf16: of one token, and of `context` tokens, the most that the model can use."""

    per_token: int
    context: int

    @property
    def per_step(self) -> int:
        """Bytes for `KV_STEP` tokens."""
        return self.per_token * KV_STEP

    @property
    def at_full_context(self) -> int:
        """Bytes for one request that fills the context."""
        return self.per_token * self.context


def weight_memory(structure: Structure) -> dict[str, int]:
    """Number format -> bytes of the weights; see the assumptions above."""
    matrices = sum(t.numel for t in structure.tensors if t.is_counted and len(t.shape) > 1)
    others = structure.parameters.total - matrices
    return {name: -(-(matrices * a + others * b) // 32) for name, (a, b) in BYTES_OF_32.items()}


def kv_memory(structure: Structure) -> KVMemory | None:
    """The KV cache's sizes; None for a model without a configuration."""
    config = structure.config
    if config is None:
        return None
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2  # K and V, two bytes each
    return KVMemory(per_token, config.max_position_embeddings)
