"""Engine: many requests, one step at a time, in token ids. Knows no text.

A step serves requests in order of arrival until its token budget is used up: one token of each that is generating,
and as much of a waiting prompt as still fits. When the KV cache is full, the newest request gives its blocks back
and is computed again later. One bad request ends with an error; its neighbours do not notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from qwill.block_pool import BlockPool
from qwill.errors import QwillError
from qwill.outputs import FinishReason
from qwill.request import Request
from qwill.runner import ModelRunner, Scheduled
from qwill.sampler import Sampled, Sampler

__all__ = ["Engine", "StepOutput"]


@dataclass(frozen=True)
class StepOutput:
    """What a step did for one request: a new token, an end, or both."""

    request: Request
    sampled: Sampled | None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: QwillError | None = None


class Engine:
    """Runs requests to their end. Not thread-safe.

    `vocab_size` counts the tokenizer's tokens: ids past it are never sampled. `eos_token_ids` end an answer
    unless the request ignores them.
    """

    def __init__(
        self, runner: ModelRunner, *, max_batch_tokens: int, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self.runner = runner
        self.pool = BlockPool(runner.kv_cache.num_blocks)
        self._block_size = runner.kv_cache.block_size
        self._max_batch_tokens = max_batch_tokens
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._requests: list[Request] = []  # in order of arrival
        self._samplers: dict[int, Sampler] = {}  # by id() of the request

    @property
    def busy(self) -> bool:
        """True while any request is unfinished."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Take a request, whose prompt was checked before.

        Raises:
            SettingError: its parameters name token ids outside the vocabulary.
        """
        self._samplers[id(request)] = Sampler(
            request.params,
            request.prompt_token_ids,
            self._vocab_size,
            eos_token_ids=self._eos_token_ids,
            index=request.index,
        )
        self._requests.append(request)

    def finish(self, request: Request) -> None:
        """Forget a request, finished or not, and free its blocks. Harmless when it is gone already."""
        if self._samplers.pop(id(request), None) is None:
            return
        self._requests = [other for other in self._requests if other is not request]
        self._release(request)

    def step(self) -> list[StepOutput]:
        """Compute one step and choose the next token of every request that reached its last known one."""
        scheduled = self._schedule()
        if not scheduled:
            return []
        logits = self.runner.run(scheduled)
        outputs = []
        rows = iter(logits)
        for share in scheduled:
            row = next(rows) if share.ends_prompt else None
            if share.request.use_cache:
                share.request.num_computed_tokens += share.count
            if row is not None:
                outputs.append(self._advance(share.request, row))
        return outputs

    def _advance(self, request: Request, logits: Tensor) -> StepOutput:
        """Choose one token, logits (V,), and see whether the answer ends with it."""
        try:
            sampled = self._samplers[id(request)].sample(logits)
        except QwillError as error:
            self.finish(request)
            return StepOutput(request, None, "error", error=error)
        request.output_token_ids.append(sampled.token_id)
        reason, stop_token_id = self._ending(request, sampled.token_id)
        if reason:
            self.finish(request)
        return StepOutput(request, sampled, reason, stop_token_id)

    def _ending(self, request: Request, token_id: int) -> tuple[FinishReason | None, int | None]:
        if len(request.output_token_ids) >= request.params.min_tokens:
            if token_id in request.params.stop_token_ids:
                return "stop", token_id
            if token_id in self._eos_token_ids and not request.params.ignore_eos:
                return "stop", None
        return ("length", None) if len(request.output_token_ids) >= request.max_tokens else (None, None)

    def _schedule(self) -> Sequence[Scheduled]:
        """Oldest first, within the token budget; requests without a cache are computed alone and whole."""
        scheduled: list[Scheduled] = []
        budget = self._max_batch_tokens
        for request in list(self._requests):
            if not request.use_cache:
                if not scheduled:
                    return [Scheduled(request, request.num_tokens)]
                continue
            count = min(request.num_pending_tokens, budget)
            if count == 0 or not self._reserve(request, count):
                break
            scheduled.append(Scheduled(request, count))
            budget -= count
        return scheduled

    def _reserve(self, request: Request, count: int) -> bool:
        """Blocks for `count` more tokens, if need be taken from newer requests; False when there are not enough."""
        need = -(-(request.num_computed_tokens + count) // self._block_size) - len(request.block_table)
        while need > self.pool.num_free:
            holders = [other for other in self._requests if other.block_table]
            newest = holders[-1] if holders else request
            if newest is request or self._requests.index(newest) < self._requests.index(request):
                return False
            self._release(newest)
        for _ in range(need):
            last = request.block_table[-1] if request.block_table else None
            request.block_table.append(self.pool.allocate(after=last))
        return True

    def _release(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []
        request.num_computed_tokens = 0
