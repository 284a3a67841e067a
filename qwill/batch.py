"""Batch: everything one forward pass needs besides the weights and the token ids.

All requests of a step stand end to end, without padding: T new tokens of B requests. Prefill, chunked prefill,
decode and verification are the same thing here: a request adds one or more tokens to a context of any length.

Knows nothing of models, scheduling or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from qwill.errors import TensorError

__all__ = ["Batch", "ContextSpan", "KVCache", "NewTokens"]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers, in blocks of S tokens: both (layers, blocks, S, Hkv, D).

    In int8, each row of D codes has a scale, fp32 (layers, blocks, S, Hkv): value = scale · code; otherwise none.
    Memory is reserved, not touched: the operating system gives out pages as blocks are first written.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int, int], *, dtype: torch.dtype, device: torch.device) -> KVCache:
        """An unwritten cache of `shape` = (layers, blocks, S, Hkv, D)."""
        rows = [torch.empty(shape, dtype=dtype, device=device) for _ in range(2)]
        if dtype != torch.int8:
            return cls(*rows)
        return cls(*rows, *(torch.empty(shape[:-1], dtype=torch.float32, device=device) for _ in range(2)))

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens per block, S."""
        return self.keys.shape[2]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values by slot: both (blocks * S, Hkv, D). A slot is block * S + offset."""
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)

    def keys_at(self, layer: int, slots: Tensor) -> Tensor:
        """The keys in some slots of a layer as numbers, fp32: slots (T,) int64 -> (T, Hkv, D)."""
        keys = self.layer(layer)[0][slots].float()
        scales = self.scales(layer)[0]
        return keys if scales is None else keys * scales[slots][..., None]

    def copy_block(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of a block, of all layers."""
        for x in (self.keys, self.values, self.key_scales, self.value_scales):
            if x is not None:
                x[:, target, :count] = x[:, source, :count]

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """One layer's scales of keys and values by slot: both (blocks * S, Hkv), or None where there are none."""
        if self.key_scales is None or self.value_scales is None:
            return None, None
        return self.key_scales[layer].flatten(0, 1), self.value_scales[layer].flatten(0, 1)


@dataclass(frozen=True)
class NewTokens:
    """One request's share of a step: `count` tokens after `start` computed ones, and where its context lies.

    Logits are wanted for the last `num_logits` of them.
    """

    start: int
    count: int
    block_table: Sequence[int] = ()
    num_logits: int = 1


@dataclass(frozen=True)
class ContextSpan:
    """One request as the reference attention sees it: rows of the step, and the slots of its whole context.

    `slots` is a slice where the blocks are consecutive, so that the context can be read in place.
    """

    rows: slice
    length: int
    slots: slice | Tensor


@dataclass(frozen=True)
class Batch:
    """The tensors of one step. T new tokens, B requests, S tokens per block.

    positions     (T,)  int64  position of each token in its request, from 0
    query_start   (B+1,) int32 first row of each request; the last entry is T
    context_lens  (B,)  int32  tokens in each request's context, this step's included
    block_tables  (B, most blocks of a request) int32  the blocks of each context in order, padded with 0
    slot_mapping  (T,)  int64  where each token's key and value are written
    logits_rows   (R,)  int64  the rows whose logits are wanted
    kv_cache            None: no cache; each request attends to its own rows of this step
    """

    positions: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    logits_rows: Tensor
    kv_cache: KVCache | None

    @classmethod
    def build(cls, requests: Sequence[NewTokens], kv_cache: KVCache | None, device: torch.device) -> Batch:
        """Lay the requests of a step end to end.

        Raises:
            TensorError: a request's new tokens do not fit into its blocks.
        """
        counts = np.array([request.count for request in requests])
        ends = counts.cumsum()
        positions = [np.arange(request.start, request.start + request.count) for request in requests]
        wanted = [np.arange(end - request.num_logits, end) for end, request in zip(ends, requests, strict=True)]
        tables = np.zeros((len(requests), max(len(request.block_table) for request in requests)), dtype=np.int32)
        slots = []
        for row, (request, new) in enumerate(zip(requests, positions, strict=True)):
            tables[row, : len(request.block_table)] = request.block_table
            if kv_cache is not None:
                size = kv_cache.block_size
                fits = request.start + request.count <= len(request.block_table) * size
                _require(fits, f"request {row} of the step has more tokens than its blocks hold")
                slots.append(tables[row, new // size].astype(np.int64) * size + new % size)

        def tensor(values: object, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(values, dtype=dtype, device=device)

        return cls(
            positions=tensor(np.concatenate(positions), torch.int64),
            query_start=tensor([0, *ends.tolist()], torch.int32),
            context_lens=tensor([request.start + request.count for request in requests], torch.int32),
            block_tables=tensor(tables, torch.int32),
            slot_mapping=tensor(np.concatenate(slots) if slots else [], torch.int64),
            logits_rows=tensor(np.concatenate(wanted), torch.int64),
            kv_cache=kv_cache,
        )

    @cached_property
    def spans(self) -> tuple[ContextSpan, ...]:
        """Each request's rows and context slots; worked out once per step, used by every layer."""
        starts, lengths = self.query_start.tolist(), self.context_lens.tolist()
        return tuple(
            ContextSpan(
                slice(starts[i], starts[i + 1]), length, self._slots(i, length, slice(starts[i], starts[i + 1]))
            )
            for i, length in enumerate(lengths)
        )

    @cached_property
    def checked(self) -> bool:
        """Always true: raises TensorError where the tensors contradict each other or the cache; looks only once.

        Guards kernels, which follow block tables and slots without looking.
        """
        starts, lengths = self.query_start.long(), self.context_lens.long()
        new = starts.diff()
        _require(len(new) > 0 and len(new) == len(lengths) == len(self.block_tables), "not one entry for each request")
        _require(int(starts[0]) == 0 and int(new.min()) > 0, "query_start does not rise from 0")
        _require(int(starts[-1]) == len(self.positions), "query_start does not end at T")
        if self.kv_cache is None:
            _require(torch.equal(lengths, new), "context_lens without a cache is not the number of new tokens")
            return True
        blocks, size = self.kv_cache.num_blocks, self.kv_cache.block_size
        _require(bool((lengths >= new).all()), "context_lens leaves out new tokens")
        _require(int(lengths.max()) <= self.block_tables.shape[1] * size, "context_lens exceeds block_tables")
        _require(_within(self.block_tables, blocks), f"block_tables names a block outside 0 … {blocks - 1}")
        _require(len(self.slot_mapping) == len(self.positions), "slot_mapping is not one slot for each new token")
        _require(_within(self.slot_mapping, blocks * size), f"slot_mapping is outside 0 … {blocks * size - 1}")
        return True

    def _slots(self, request: int, length: int, rows: slice) -> slice | Tensor:
        if self.kv_cache is None:
            return rows
        size = self.kv_cache.block_size
        blocks = self.block_tables[request, : -(-length // size)]
        first = int(blocks[0])
        if blocks.tolist() == list(range(first, first + len(blocks))):
            return slice(first * size, first * size + length)
        offsets = torch.arange(size, device=blocks.device)
        return (blocks[:, None] * size + offsets).flatten()[:length].long()


def _within(indices: Tensor, count: int) -> bool:
    low, high = indices.aminmax()
    return int(low) >= 0 and int(high) < count


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise TensorError(problem, where="the step's Batch", hint="build it with Batch.build")
