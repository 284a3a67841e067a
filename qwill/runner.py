"""ModelRunner: a step's requests in, logits out. Lays out the batch and calls the model; chooses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.models.qwen3 import CausalLM
from qwill.request import Request

__all__ = ["ModelRunner", "Scheduled"]


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
        return self._forward(token_ids, Batch.build(parts, cache, self.device))

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        """Logits of one sequence, computed without the cache: (1, V), or (T, V) for all positions."""
        count = len(token_ids)
        part = NewTokens(0, count, num_logits=count if all_positions else 1)
        return self._forward(token_ids, Batch.build([part], None, self.device))

    def _forward(self, token_ids: Sequence[int], batch: Batch) -> Tensor:
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        logits: Tensor = self.model(ids, batch)
        return logits
