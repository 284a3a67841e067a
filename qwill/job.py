"""Job: one prompt on its way through the engine: its requests, the answers they build, its events and its clock.

Knows no engine: it is told what a step did for one of its requests. One thread tells at a time; another may read.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

from qwill.answer import Answer
from qwill.engine import StepOutput
from qwill.errors import QwillError
from qwill.outputs import CompletionOutput, FinishReason, Logprob, Metrics, RequestOutput, StreamEvent
from qwill.request import Request
from qwill.sampler import Sampled
from qwill.tokenizer import Tokenizer

__all__ = ["Job"]


class Job:
    """`output` grows as steps come in. `start` is when the user asked, in seconds of `time.perf_counter`.

    `listener` is called with the job after each change, by the thread that made it: it must be quick.
    Events are kept for `take_events` where the job is `streamed`; a long list would fill the memory with them.
    """

    def __init__(self, output: RequestOutput, start: float, tokenizer: Tokenizer) -> None:
        self.output = output
        self.start = start
        self.requests: list[Request] = []
        self.listener: Callable[[Job], None] | None = None
        self.streamed = False
        self._answers: list[Answer] = []
        self._tokenizer = tokenizer
        self._first = 0.0
        self._pending: collections.deque[StreamEvent] = collections.deque()
        output.metrics = Metrics(prompt_tokens=len(output.prompt_token_ids))

    def add(self, request: Request, answer: Answer) -> None:
        """One more answer to the prompt; requests are added in the order of their index."""
        self.requests.append(request)
        self._answers.append(answer)
        self.output.outputs.append(answer.output)

    def take(self, step: StepOutput) -> None:
        """Add what a step brought. An answer whose text fails ends alone, with the error."""
        answer = self._answers[step.request.index]
        if step.sampled is not None:
            self._count(step.request)
            try:
                self._note_logprobs(answer.output, step.sampled)
                self._keep(answer.push(step.sampled.token_id, silent=step.is_end_token))
            except QwillError as error:
                answer.output.finish_reason, answer.output.error = "error", error
        if step.finish_reason is not None and answer.output.finish_reason is None:
            answer.output.finish_reason = step.finish_reason
            answer.output.stop_reason = step.stop_token_id
            answer.output.error = step.error
        if answer.output.finish_reason is not None:
            self._finish(answer)
        self._tell()

    def ended(self, request: Request) -> bool:
        """Whether this answer is complete, for whatever reason."""
        return self._answers[request.index].output.finish_reason is not None

    def abort(self) -> None:
        """End the answers that are not complete as they are."""
        self._end("abort", None)

    def fail(self, error: QwillError) -> None:
        """End the answers that are not complete with an error."""
        self._end("error", error)

    def take_events(self) -> list[StreamEvent]:
        """The events since the last call. After `output.finished` was seen true, no more will come."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    @property
    def error(self) -> QwillError | None:
        """The first error of any answer."""
        return next((answer.output.error for answer in self._answers if answer.output.error), None)

    def _end(self, reason: FinishReason, error: QwillError | None) -> None:
        for answer in self._answers:
            if answer.output.finish_reason is None:
                answer.output.finish_reason, answer.output.error = reason, error
                self._finish(answer)
        self._tell()

    def _finish(self, answer: Answer) -> None:
        """The last events of an answer, and then the word that all are complete: a reader looks in the other order."""
        self._keep(answer.finish())
        metrics = self.output.metrics
        metrics.drafted_tokens = sum(request.drafted_tokens for request in self.requests)
        metrics.accepted_tokens = sum(request.accepted_tokens for request in self.requests)
        self.output.finished = all(answer.output.finish_reason for answer in self._answers)

    def _keep(self, events: list[StreamEvent]) -> None:
        if self.streamed:
            self._pending.extend(events)

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener(self)

    def _count(self, request: Request) -> None:
        metrics, now = self.output.metrics, time.perf_counter()
        if metrics.generated_tokens == 0:
            self._first = now
            metrics.time_to_first_token = now - self.start
            metrics.cached_tokens = request.cached_tokens
        metrics.generated_tokens += 1
        metrics.decode_seconds = now - self._first

    def _note_logprobs(self, output: CompletionOutput, sampled: Sampled) -> None:
        if sampled.logprob is None:
            return
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sampled.logprob
        output.logprobs = output.logprobs or []
        output.logprobs.append(
            {
                token_id: Logprob(logprob, rank, self._tokenizer.decode([token_id], skip_special_tokens=False))
                for token_id, logprob, rank in sampled.top
            }
        )
