"""ModelRunner: a step's requests in, logits out. Lays out the batch and calls the model, or replays a recorded step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.quantization import PackedWeight
from qwill.replay import DecodeReplay
from qwill.request import Request

__all__ = ["ModelRunner", "Scheduled"]

MOST_RECORDED = 8
"""Recorded steps that are kept: one for each number of requests that were decoded together of late."""


@dataclass(frozen=True)
class Scheduled:
    """One request's share of a step: its next `count` pending tokens."""

    request: Request
    count: int

    @property
    def ends_prompt(self) -> bool:
        """True when the step computes the request's last known token, so that a new one can be chosen."""
        return self.count == self.request.num_pending_tokens


class ModelRunner:
    """Owns the model and the KV cache."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, device: torch.device) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self.device = device
        self._native = native_ops() if isinstance(model.lm_head.weight, PackedWeight) else None
        self._recorded: OrderedDict[int, DecodeReplay] = OrderedDict()

    def run(self, scheduled: Sequence[Scheduled]) -> Tensor:
        """Compute one step. Logits (R, V): one row, in order, for each request whose `ends_prompt` is true.

        Either all requests use the cache or none does; without it, each must be scheduled from its first token.
        """
        token_ids: list[int] = []
        parts = []
        for share in scheduled:
            request, start = share.request, share.request.num_computed_tokens
            token_ids += request.tokens(start, share.count)
            parts.append(NewTokens(start, share.count, request.block_table, int(share.ends_prompt)))
        cache = self.kv_cache if scheduled[0].request.use_cache else None
        if cache is not None and all(share.count == 1 and share.ends_prompt for share in scheduled):
            replay = self._replay(len(parts))
            if replay is not None:
                return replay.run(token_ids, parts)
        return self._forward(token_ids, Batch.build(parts, cache, self.device))

    def _replay(self, size: int) -> DecodeReplay | None:
        """The recorded decoding step of so many requests; None where the model does not run on native ops."""
        if self._native is None:
            return None
        if size not in self._recorded:
            if len(self._recorded) == MOST_RECORDED:
                self._recorded.popitem(last=False)
            vocab_size = self.model.config.vocab_size
            replay = DecodeReplay(self._native, self.model, self.kv_cache, size=size, vocab_size=vocab_size)
            self._recorded[size] = replay
        self._recorded.move_to_end(size)
        return self._recorded[size]

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        """Logits of one sequence, computed without the cache: (1, V), or (T, V) for all positions."""
        count = len(token_ids)
        part = NewTokens(0, count, num_logits=count if all_positions else 1)
        return self._forward(token_ids, Batch.build([part], None, self.device))

    def _forward(self, token_ids: Sequence[int], batch: Batch) -> Tensor:
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        logits: Tensor = self.model(ids, batch)
        return logits
