"""Replay: a decoding step of B requests is recorded once, and then run again without going through Python.

A step in which every request adds one token calls the same kernels with the same shapes each time. Only what they read
changes: token ids, positions, slots, block tables, context lengths. So these stand in tensors of their own, which are
filled in before each run. Knows no scheduling; which steps are replayed is the runner's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.errors import TensorError
from qwill.ops.native import NativeOps

__all__ = ["DecodeReplay"]

Forward = Callable[[Tensor, Batch], Tensor]


class DecodeReplay:
    """One recorded step of `size` requests, each adding one token to a context in `kv_cache`."""

    def __init__(self, ops: NativeOps, forward: Forward, kv_cache: KVCache, *, size: int, vocab_size: int) -> None:
        self._ops, self._forward, self._vocab_size = ops, forward, vocab_size
        self._ids = torch.zeros(size, dtype=torch.int64)
        self._batch = Batch(
            positions=torch.zeros(size, dtype=torch.int64),
            query_start=torch.arange(size + 1, dtype=torch.int32),
            context_lens=torch.ones(size, dtype=torch.int32),
            block_tables=torch.zeros((size, kv_cache.num_blocks), dtype=torch.int32),
            slot_mapping=torch.zeros(size, dtype=torch.int64),
            logits_rows=torch.arange(size),
            kv_cache=kv_cache,
        )
        b = self._batch  # filled in by way of numpy, which is several times quicker for single numbers
        self._fields = [x.numpy() for x in (self._ids, b.positions, b.context_lens, b.slot_mapping)]
        self._block_tables = b.block_tables.numpy()
        self._tables: list[tuple[Sequence[int], int]] = [((), 0)] * size  # what each row of block_tables holds
        self._logits: Tensor | None = None

    def run(self, token_ids: Sequence[int], parts: Sequence[NewTokens]) -> Tensor:
        """Compute the step: logits (B, V) fp32, which the next run overwrites.

        Raises:
            TensorError: an id, block or position that a kernel must not follow.
        """
        for row, (token_id, part) in enumerate(zip(token_ids, parts, strict=True)):
            self._fill_in(row, token_id, part)
        if self._logits is None:
            with self._ops.record() as self._recording:
                self._logits = self._forward(self._ids, self._batch)
        else:
            self._recording.program.run(self._ops.pool)
        return self._logits

    def _fill_in(self, row: int, token_id: int, part: NewTokens) -> None:
        cache, table = self._batch.kv_cache, part.block_table
        assert cache is not None
        size = cache.block_size
        if not 0 <= token_id < self._vocab_size or not 0 <= part.start < len(table) * size:
            raise TensorError(f"token {token_id} at position {part.start} lies outside the vocabulary or its blocks")
        known, count = self._tables[row]
        if known is not table:
            count = 0
        if len(table) > count:
            added = table[count:]
            if min(added) < 0 or max(added) >= cache.num_blocks:
                raise TensorError(f"a block lies outside a cache of {cache.num_blocks}")
            self._block_tables[row, count : len(table)] = added
            self._tables[row] = (table, len(table))
        slot = table[part.start // size] * size + part.start % size
        for field, value in zip(self._fields, (token_id, part.start, part.start + 1, slot), strict=True):
            field[row] = value
