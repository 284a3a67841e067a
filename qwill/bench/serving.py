"""Serve a workload with an engine, as a server would, and note when each token came. Shows nothing.

One thread does everything: it hands requests to the engine as they arrive, steps, and makes text of what came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qwill.bench.workload import Arrival
from qwill.engine import Engine, EngineStats, StepOutput
from qwill.errors import BenchmarkError
from qwill.request import Request
from qwill.sampling_params import SamplingParams
from qwill.tokenizer import Tokenizer

__all__ = ["Served", "Serving", "serve"]


@dataclass(frozen=True)
class Served:
    """One request that was served; times in seconds after the start."""

    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    arrival: float
    first_token: float
    last_token: float

    @property
    def time_to_first_token(self) -> float:
        """Seconds from its arrival; waiting is in it."""
        return self.first_token - self.arrival

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds per token after the first; None where there is no second."""
        return (self.last_token - self.first_token) / (self.new_tokens - 1) if self.new_tokens > 1 else None

    @property
    def end_to_end(self) -> float:
        """Seconds from its arrival to its last token."""
        return self.last_token - self.arrival


@dataclass(frozen=True)
class Serving:
    """What came of a workload."""

    requests: list[Served]
    seconds: float
    """From the start to the last token."""
    step_seconds: float
    """Of `seconds`, in the engine."""
    idle_seconds: float
    """Of `seconds`, waiting for the next arrival."""
    mean_batch: float
    """Requests that got a token in a step, averaged over the time of all steps."""
    stats: EngineStats
    """What the engine counted for this workload alone."""


def serve(
    engine: Engine,
    workload: Sequence[Arrival],
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    served: Callable[[], object] = lambda: None,
) -> Serving:
    """Serve it to the end. All take `params`, with lengths and seeds of their own; `served` is called for each.

    Raises:
        BenchmarkError: a request ended with an error.
    """
    answers = [_Answer(number, arrival, params, tokenizer) for number, arrival in enumerate(workload)]
    session = _Session(engine, answers, served)
    session.run()
    return session.result()


class _Session:
    """The engine, the requests, and a clock that starts at 0."""

    def __init__(self, engine: Engine, answers: list[_Answer], served: Callable[[], object]) -> None:
        self._engine, self._answers, self._served = engine, answers, served
        self._by_request = {answer.request: answer for answer in answers}
        self._waiting = deque(answers)
        self._step_seconds = self._idle_seconds = self._batch_seconds = 0.0
        self._before = replace(engine.stats)
        self._start = time.perf_counter()

    def run(self) -> None:
        while self._waiting or self._engine.busy:
            while self._waiting and self._waiting[0].arrival.seconds <= self._now and self._engine.room:
                self._engine.add(self._waiting.popleft().request)
            if self._engine.busy:
                self._step()
            else:
                self._wait()

    def result(self) -> Serving:
        return Serving(
            requests=[answer.served for answer in self._answers],
            seconds=max(answer.last_token for answer in self._answers),
            step_seconds=self._step_seconds,
            idle_seconds=self._idle_seconds,
            mean_batch=self._batch_seconds / self._step_seconds,
            stats=self._engine.stats.since(self._before),
        )

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _step(self) -> None:
        begun = self._now
        outputs = self._engine.step()
        moment = self._now
        self._step_seconds += moment - begun
        self._batch_seconds += (moment - begun) * len({output.request for output in outputs})
        for output in outputs:
            self._by_request[output.request].take(output, moment)
            if output.finish_reason is not None:
                self._served()

    def _wait(self) -> None:
        """Until the next request arrives."""
        begun = self._now
        time.sleep(max(0.0, self._waiting[0].arrival.seconds - begun))
        self._idle_seconds += self._now - begun


class _Answer:
    """A request on its way: its tokens' moments, and its text."""

    def __init__(self, number: int, arrival: Arrival, params: SamplingParams, tokenizer: Tokenizer) -> None:
        seed = None if params.seed is None else params.seed + number
        params = replace(params, seed=seed, max_tokens=arrival.new_tokens, ignore_eos=True)
        prompt = arrival.prompt_token_ids
        self.arrival = arrival
        self.request = Request(f"bench-{number}", prompt, params, max_tokens=arrival.new_tokens)
        self.first_token = self.last_token = 0.0
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=True)

    def take(self, output: StepOutput, moment: float) -> None:
        if output.error is not None or output.sampled is None:
            raise BenchmarkError(f"{self.request.request_id} was not served", where=str(output.error))
        self.first_token, self.last_token = self.first_token or moment, moment
        self._detokenizer.push(output.sampled.token_id)

    @property
    def served(self) -> Served:
        return Served(
            prompt_tokens=len(self.request.prompt_token_ids),
            new_tokens=len(self.request.output_token_ids),
            cached_tokens=self.request.cached_tokens,
            arrival=self.arrival.seconds,
            first_token=self.first_token,
            last_token=self.last_token,
        )
