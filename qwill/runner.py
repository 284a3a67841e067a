"""ModelRunner: a step's requests in, logits out. Lays out the batch and calls the model, or replays a recorded step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.ops.recording import Memory
from qwill.quantization import PackedWeight
from qwill.replay import DecodeReplay
from qwill.scheduler import BlockCopy, Scheduled

__all__ = ["ModelRunner", "Runner"]

MOST_RECORDED = 32
"""Recorded steps that are kept: one for each number of requests and of tokens that were decoded together of late."""

MOST_REPLAYED_TOKENS = 256
"""Steps of more tokens take so long that going through Python does not show."""


class Runner(Protocol):
    """What the engine needs of whoever computes its steps."""

    model: CausalLM
    kv_cache: KVCache
    device: torch.device

    def copy_block(self, copy: BlockCopy) -> None:
        """Copy the head of one block of the cache to another."""

    def run(self, scheduled: Sequence[Scheduled]) -> Tensor:
        """Logits (R, V) of a step: `num_logits` rows for each share, in order; the next step overwrites them."""

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        """Logits of one sequence, computed without the cache: (1, V), or (T, V) for all positions."""


class ModelRunner:
    """Owns the model and the KV cache."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, device: torch.device) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self.device = device
        self._native = native_ops() if isinstance(model.lm_head.weight, PackedWeight) else None
        self._recorded: OrderedDict[tuple[int, int], DecodeReplay] = OrderedDict()
        self._memory: Memory = []  # of all recorded steps: one runs at a time

    def copy_block(self, copy: BlockCopy) -> None:
        """Copy the head of one block of the cache to another."""
        self.kv_cache.copy_block(copy.source, copy.target, copy.count)

    def run(self, scheduled: Sequence[Scheduled], *, replay: bool = True) -> Tensor:
        """Compute one step. Logits (R, V): `num_logits` rows for each share, in order; the next step overwrites them.

        Without `replay` every op is called from the model, which takes longer and gives the same bits.
        Either all requests use the cache or none does; without it, each must be scheduled from its first token.
        """
        token_ids: list[int] = []
        parts = []
        for share in scheduled:
            request, start = share.request, share.request.num_computed_tokens
            token_ids += request.tokens(start, share.count)
            token_ids += share.draft
            count = share.count + len(share.draft)
            parts.append(NewTokens(start, count, request.block_table, share.num_logits))
        cache = self.kv_cache if scheduled[0].request.use_cache else None
        if replay and cache is not None and all(part.count == part.num_logits for part in parts):
            recorded = self._replay(len(parts), len(token_ids))
            if recorded is not None:
                return recorded.run(token_ids, parts)
        return self._forward(token_ids, Batch.build(parts, cache, self.device))

    def _replay(self, num_requests: int, num_tokens: int) -> DecodeReplay | None:
        """The recorded step of this shape; None where the model does not run on native ops, or it would not show."""
        if self._native is None or num_tokens > MOST_REPLAYED_TOKENS:
            return None
        shape = (num_requests, num_tokens)
        if shape not in self._recorded:
            if len(self._recorded) == MOST_RECORDED:
                self._recorded.popitem(last=False)
            self._recorded[shape] = DecodeReplay(
                self._native,
                self.model,
                self.kv_cache,
                num_requests=num_requests,
                num_tokens=num_tokens,
                vocab_size=self.model.config.vocab_size,
                memory=self._memory,
            )
        self._recorded.move_to_end(shape)
        return self._recorded[shape]

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        """Logits of one sequence, computed without the cache: (1, V), or (T, V) for all positions."""
        count = len(token_ids)
        part = NewTokens(0, count, num_logits=count if all_positions else 1)
        return self._forward(token_ids, Batch.build([part], None, self.device))

    def _forward(self, token_ids: Sequence[int], batch: Batch) -> Tensor:
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        logits: Tensor = self.model(ids, batch)
        return logits
