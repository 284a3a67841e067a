"""Replay: a decoding step is recorded once, and then run again without going through Python.

Steps of B requests that add T tokens together, and want logits after each of them, call the same kernels with the same
shapes each time. Only what they read changes: token ids, positions, slots, block tables, lengths. So these stand in
tensors of their own, which are filled in before each run. T is B when every request adds its next token, and more when
guesses are verified. Knows no scheduling; which steps are replayed is the runner's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.errors import TensorError
from qwill.ops.native import NativeOps
from qwill.ops.recording import Memory

__all__ = ["DecodeReplay"]

Forward = Callable[[Tensor, Batch], Tensor]


class DecodeReplay:
    """One recorded step of `num_requests` requests that add `num_tokens` tokens in all to contexts in `kv_cache`.

    Replays that share one `memory` overwrite each other's logits.
    """

    def __init__(
        self,
        ops: NativeOps,
        forward: Forward,
        kv_cache: KVCache,
        *,
        num_requests: int,
        num_tokens: int,
        vocab_size: int,
        memory: Memory | None = None,
    ) -> None:
        self._ops, self._forward, self._vocab_size, self._memory = ops, forward, vocab_size, memory
        self._ids = torch.zeros(num_tokens, dtype=torch.int64)
        self._batch = Batch(
            positions=torch.zeros(num_tokens, dtype=torch.int64),
            query_start=torch.zeros(num_requests + 1, dtype=torch.int32),
            context_lens=torch.ones(num_requests, dtype=torch.int32),
            block_tables=torch.zeros((num_requests, kv_cache.num_blocks), dtype=torch.int32),
            slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
            logits_rows=torch.arange(num_tokens),
            kv_cache=kv_cache,
        )
        b = self._batch  # filled in by way of numpy, which is several times quicker for a few numbers
        self._per_token = [x.numpy() for x in (self._ids, b.positions, b.slot_mapping)]
        self._query_start, self._context_lens = b.query_start.numpy(), b.context_lens.numpy()
        self._block_tables = b.block_tables.numpy()
        self._tables: list[tuple[Sequence[int], int]] = [((), 0)] * num_requests  # what the rows of block_tables hold
        self._logits: Tensor | None = None

    def run(self, token_ids: Sequence[int], parts: Sequence[NewTokens]) -> Tensor:
        """Compute the step: logits (T, V) fp32, which the next run overwrites.

        Raises:
            TensorError: an id, block or position that a kernel must not follow.
        """
        self._fill_in(token_ids, parts)
        if self._logits is None:
            with self._ops.record(self._memory) as self._recording:
                self._logits = self._forward(self._ids, self._batch)
        else:
            self._recording.program.run(self._ops.pool)
        return self._logits

    def _fill_in(self, token_ids: Sequence[int], parts: Sequence[NewTokens]) -> None:
        positions: list[int] = []
        slots: list[int] = []
        ends = [0]
        size = self._kv_cache.block_size
        for row, part in enumerate(parts):
            new, table = range(part.start, part.start + part.count), part.block_table
            if part.start < 0 or new.stop > len(table) * size:
                raise TensorError(f"positions {new.start} … {new.stop - 1} lie outside the request's blocks")
            self._fill_in_table(row, table)
            positions += new
            slots += [table[p // size] * size + p % size for p in new]
            ends.append(len(positions))
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            raise TensorError(f"a token id lies outside a vocabulary of {self._vocab_size}")
        for field, values in zip(self._per_token, (token_ids, positions, slots), strict=True):
            field[:] = values
        self._query_start[:] = ends
        self._context_lens[:] = [part.start + part.count for part in parts]

    def _fill_in_table(self, row: int, table: Sequence[int]) -> None:
        """A table that was seen before has at most grown; another one is written anew."""
        known, count = self._tables[row]
        if known is not table:
            count = 0
        if len(table) > count:
            added = table[count:]
            if min(added) < 0 or max(added) >= self._kv_cache.num_blocks:
                raise TensorError(f"a block lies outside a cache of {self._kv_cache.num_blocks}")
            self._block_tables[row, count : len(table)] = added
            self._tables[row] = (table, len(table))

    @property
    def _kv_cache(self) -> KVCache:
        assert self._batch.kv_cache is not None
        return self._batch.kv_cache
