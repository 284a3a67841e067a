"""What an op costs at least: bytes moved, and multiplications and additions. Worked out from its arguments alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qwill.batch import Batch
from qwill.quantization import PackedWeight

__all__ = ["cost"]


def cost(op: str, arguments: tuple[Any, ...], result: Any) -> tuple[int, int]:
    """(bytes, operations) of one call.

    Every argument is read once and the result written once; of a table only the rows that are asked for, and nothing
    where no row is: the head in the first pieces of a long prompt. Attention reads the keys and values of each context
    once. Operations are counted for matrix products and attention only.
    """
    written = sum(map(_nbytes, result)) if isinstance(result, tuple) else _nbytes(result)
    if op == "embedding":
        token_ids, table = arguments
        return written + token_ids.nbytes + _nbytes(table) * len(token_ids) // table.shape[0], 0
    if op == "rows":
        return 2 * written + arguments[1].nbytes, 0
    if op == "attention":
        q, k, v, batch, _ = arguments
        read, operations = _attention(q, k, batch)
        return written + q.nbytes + k.nbytes + v.nbytes + read, operations
    nbytes = written + sum(map(_nbytes, arguments)) if len(arguments[0]) else 0
    if op == "linear":
        x, weight = arguments[:2]
        return nbytes, 2 * len(x) * weight.shape[0] * weight.shape[1]
    return nbytes, 0


def _nbytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, Tensor | PackedWeight) else 0


def _attention(q: Tensor, k: Tensor, batch: Batch) -> tuple[int, int]:
    """Bytes of the cache that are written and read, and the operations of q kᵀ and of the sum of values."""
    _, heads, head_dim = q.shape
    pairs = int((batch.positions + 1).sum())  # of a query and a key that it may look at
    operations = 4 * pairs * heads * head_dim
    if batch.kv_cache is None:
        return 0, operations
    keys, scales = batch.kv_cache.keys, batch.kv_cache.key_scales
    row = k.shape[1] * (head_dim * keys.element_size() + (scales.element_size() if scales is not None else 0))
    tokens = len(q) + int(batch.context_lens.sum())
    return 2 * row * tokens, operations
