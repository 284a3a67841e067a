"""Engine: many requests at once, one step at a time, in token ids. Knows no text.

A step is planned by the scheduler, computed by the runner, and then each request's own sampler chooses its tokens. What
a request gets never depends on the others, nor on the order, on preemption, on cached blocks or on guesses: logits have
the same bits in any company, and a guess only saves waiting for a token that the sampler would have chosen anyway.
One bad request ends with an error; its neighbours do not notice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from qwill.block_pool import BlockPool
from qwill.errors import EngineError, ModelError, QwillError
from qwill.faults import Faults
from qwill.outputs import FinishReason
from qwill.request import Request
from qwill.runner import Runner
from qwill.sampler import Sampled, Sampler
from qwill.scheduler import Limits, Scheduled, Scheduler
from qwill.speculative import Speculation
from qwill.thinking import Thinking, ThinkingTokens

__all__ = ["Engine", "EngineStats", "StepOutput"]


@dataclass(frozen=True)
class StepOutput:
    """What a step did for one request: a new token, an end, or both. With guesses, a step may bring it several.

    `is_end_token`: the token only ended the answer, and is no part of its text.
    """

    request: Request
    sampled: Sampled | None
    finish_reason: FinishReason | None = None
    is_end_token: bool = False
    stop_token_id: int | None = None
    error: QwillError | None = None


@dataclass
class EngineStats:
    """What was done since the engine was made: counts in tokens, times in seconds.

    schedule: planning, guessing included; model: forward passes; sample: choosing tokens; other: the rest of steps.
    """

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    schedule_seconds: float = 0.0
    model_seconds: float = 0.0
    sample_seconds: float = 0.0
    other_seconds: float = 0.0

    def since(self, earlier: EngineStats) -> EngineStats:
        """What was done after an `earlier` copy was taken."""
        before = asdict(earlier)
        return EngineStats(**{name: value - before[name] for name, value in asdict(self).items()})


class Engine:
    """Runs requests to their end. Not thread-safe.

    `vocab_size` counts the tokenizer's tokens: ids past it are never sampled. `eos_token_ids` end an answer
    unless the request ignores them. `thinking` says how a chat's answer thinks; None: the model cannot.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        prefix_cache: bool = True,
        speculation: Speculation | None = None,
        thinking: ThinkingTokens | None = None,
    ) -> None:
        self.runner = runner
        self.pool = BlockPool(runner.kv_cache.num_blocks, runner.kv_cache.block_size)
        self.stats = EngineStats()
        self._scheduler = Scheduler(self.pool, limits, prefix_cache=prefix_cache)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._thinking = thinking
        self._speculation = speculation
        self._samplers: dict[Request, Sampler] = {}
        self._faults = Faults.from_environment()

    @property
    def busy(self) -> bool:
        """True while any request is unfinished."""
        return self._scheduler.busy

    @property
    def room(self) -> int:
        """How many more requests it would take now."""
        return self._scheduler.room

    def add(self, request: Request) -> None:
        """Take a request, whose prompt was checked before.

        Raises:
            SettingError: its parameters name token ids outside the vocabulary.
            OverloadedError: the waiting queue is full.
        """
        sampler = self.new_sampler(request)
        self._scheduler.add(request)
        self._samplers[request] = sampler

    def new_sampler(self, request: Request) -> Sampler:
        """What chooses a request's tokens, as it is before the first one.

        Raises:
            SettingError: see `add`.
        """
        return Sampler(
            request.params,
            request.prompt_token_ids,
            self._vocab_size,
            eos_token_ids=self._eos_token_ids,
            index=request.index,
            grammar=request.grammar.matcher() if request.grammar is not None else None,
            thinking=self._thinking_of(request),
        )

    def _thinking_of(self, request: Request) -> Thinking | None:
        """What keeps track of an answer's thinking, where anything depends on it."""
        if self._thinking is None or (request.grammar is None and request.params.max_thinking_tokens is None):
            return None
        blank = self._thinking.blank_token_ids if request.grammar is None else ()
        return Thinking(
            request.thinking,
            self._thinking.open_token_id,
            self._thinking.close_token_id,
            request.params.max_thinking_tokens,
            blank_token_ids=blank,
        )

    def finish(self, request: Request) -> None:
        """Forget a request, finished or not, and free its blocks. Harmless when it is gone already."""
        self._forget(request, tainted=False)

    def _forget(self, request: Request, *, tainted: bool) -> None:
        self._scheduler.remove(request, tainted=tainted)
        self._samplers.pop(request, None)
        if self._speculation is not None:
            self._speculation.forget(request)

    def step(self) -> list[StepOutput]:
        """Compute one step and choose the next tokens of every request that reached its last known one."""
        laps = _Laps(self.stats)
        if self._speculation is not None:
            self._guess(self._speculation)
        step = self._scheduler.schedule(time.monotonic())
        laps.add("schedule_seconds")
        results = self._compute(step.scheduled)
        self._note_pace(step.scheduled, laps.add("model_seconds"))
        chosen = [self._choose(share, result) for share, result in zip(step.scheduled, results, strict=True)]
        laps.add("sample_seconds")
        outputs = [StepOutput(request, None, "error", error=error) for request, error in step.failed]
        for share, ours in zip(step.scheduled, chosen, strict=True):
            if not any(output.error for output in ours):  # what a failed request computed is not for others
                self._scheduler.note_computed(share, accepted=max(len(ours) - 1, 0))
            self._count(share, ours)
            outputs += ours
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.request, tainted=isinstance(output.error, (ModelError, EngineError)))
        self.stats.steps += bool(step.scheduled)
        self.stats.preemptions = self._scheduler.num_preempted
        laps.add("other_seconds")
        return outputs

    def _guess(self, speculation: Speculation) -> None:
        """Guesses for requests that generate; from the first id on that no sampler can choose, they are of no use."""
        speculation.propose(self._scheduler.running)
        for request in self._scheduler.running:
            possible = itertools.takewhile(lambda token_id: 0 <= token_id < self._vocab_size, request.draft_token_ids)
            request.draft_token_ids = list(possible)

    def _note_pace(self, scheduled: Sequence[Scheduled], seconds: float) -> None:
        """Steps of generation tell what one more row costs; those with prompts in them do not."""
        if self._speculation is not None and scheduled and all(s.count == 1 and s.num_logits for s in scheduled):
            self._speculation.note_step(tokens=sum(s.num_logits for s in scheduled), seconds=seconds)

    def _compute(self, scheduled: Sequence[Scheduled]) -> list[Tensor | QwillError]:
        """Logits (num_logits, V) of each share, or why there are none.

        Where a step fails, each share is computed alone: those that fail again are the reason, and the others get the
        same bits as in company.
        """
        if not scheduled:
            return []
        while self._scheduler.copies:
            self.runner.copy_block(self._scheduler.copies[0])
            self._scheduler.copies.popleft()
        try:
            rows = self._forward(scheduled)
        except Exception:
            return [self._alone(share) for share in scheduled]
        return list(torch.split(rows, [share.num_logits for share in scheduled]))

    def _alone(self, share: Scheduled) -> Tensor | QwillError:
        """A share's logits, computed by itself; a copy, as the next step overwrites them."""
        try:
            return self._forward([share]).clone()
        except QwillError as error:
            return error
        except Exception as error:
            return _unforeseen(error, share.request)

    def _forward(self, scheduled: Sequence[Scheduled]) -> Tensor:
        self._faults.check("model", [share.request.request_id for share in scheduled])
        return self.runner.run(scheduled)

    def _choose(self, share: Scheduled, result: Tensor | QwillError) -> list[StepOutput]:
        """The next tokens of one request: one, and one more for each guess that was right."""
        request = share.request
        if isinstance(result, QwillError):
            return [StepOutput(request, None, "error", error=result)]
        outputs: list[StepOutput] = []
        for logits, guess in zip(result, (*share.draft, None), strict=False):
            outputs.append(self._next(request, logits))
            sampled = outputs[-1].sampled
            if outputs[-1].finish_reason or sampled is None or sampled.token_id != guess:
                break
        return outputs

    def _next(self, request: Request, logits: Tensor) -> StepOutput:
        """Choose one token, logits (V,), and see whether the answer ends with it."""
        try:
            self._faults.check("sample", [request.request_id])
            sampled = self._samplers[request].sample(logits)
        except QwillError as error:
            return StepOutput(request, None, "error", error=error)
        except Exception as error:
            return StepOutput(request, None, "error", error=_unforeseen(error, request))
        request.output_token_ids.append(sampled.token_id)
        return self._judged(request, sampled)

    def _judged(self, request: Request, sampled: Sampled) -> StepOutput:
        """Whether the answer ends with this token, which it has already."""
        token_id, count = sampled.token_id, len(request.output_token_ids)
        if count >= request.params.min_tokens:
            if token_id in request.params.stop_token_ids:
                return StepOutput(request, sampled, "stop", is_end_token=True, stop_token_id=token_id)
            if token_id in self._eos_token_ids and not request.params.ignore_eos:
                return StepOutput(request, sampled, "stop", is_end_token=True)
        if self._samplers[request].finished:
            # What completes a grammar is text, but for an end token that a grammar allows before min_tokens.
            return StepOutput(request, sampled, "stop", is_end_token=token_id in self._eos_token_ids)
        return StepOutput(request, sampled, "length" if count >= request.max_tokens else None)

    def _count(self, share: Scheduled, outputs: Sequence[StepOutput]) -> None:
        stats, request = self.stats, share.request
        new = sum(output.sampled is not None for output in outputs)
        stats.computed_tokens += share.count + len(share.draft)
        stats.generated_tokens += new
        if new and new == len(request.output_token_ids):
            stats.prompt_tokens += len(request.prompt_token_ids)
            stats.prefix_hit_tokens += request.cached_tokens
        judged = [output.sampled.token_id for output in outputs if output.sampled is not None][: len(share.draft)]
        right = sum(token_id == guess for token_id, guess in zip(judged, share.draft, strict=False))
        ended = outputs and outputs[-1].finish_reason is not None
        drafted = len(judged) if ended else len(share.draft)  # nobody knows about guesses after the end
        stats.drafted_tokens += drafted
        stats.accepted_tokens += right
        request.drafted_tokens += drafted
        request.accepted_tokens += right
        if self._speculation is not None:
            self._speculation.note_accepted(request, drafted, right)


class _Laps:
    """Adds the time since the last lap to one of the stats."""

    def __init__(self, stats: EngineStats) -> None:
        self._stats, self._last = stats, time.perf_counter()

    def add(self, name: str) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        setattr(self._stats, name, getattr(self._stats, name) + seconds)
        return seconds


def _unforeseen(error: Exception, request: Request) -> EngineError:
    return EngineError.unforeseen(error, where=f"request {request.request_id}")
