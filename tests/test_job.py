"""What a step brought becomes an output, its events and its times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qwill.answer import Answer
from qwill.engine import StepOutput
from qwill.errors import ModelError
from qwill.job import Job
from qwill.outputs import RequestOutput
from qwill.request import Request
from qwill.sampler import Sampled
from qwill.sampling_params import SamplingParams
from qwill.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_chat_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_chat_model)


def make_job(tokenizer: Tokenizer, answers: int = 1) -> Job:
    params = SamplingParams(n=answers)
    job = Job(RequestOutput("r", None, [1, 2], []), time.perf_counter(), tokenizer)
    job.streamed = True
    for index in range(answers):
        job.add(Request("r", [1, 2], params, 9, index=index), Answer(tokenizer, params, index, None))
    return job


def step(job: Job, text: str, tokenizer: Tokenizer, index: int = 0, reason: str | None = None) -> StepOutput:
    token_id = tokenizer.encode(text)[0]
    return StepOutput(job.requests[index], Sampled(token_id, None, []), reason)  # type: ignore[arg-type]


def test_events_are_given_once_and_join_to_the_text(tokenizer: Tokenizer) -> None:
    job = make_job(tokenizer)
    job.take(step(job, "a", tokenizer))
    assert [event.text for event in job.take_events()] == ["a"]
    assert job.take_events() == []
    job.take(step(job, "b", tokenizer, reason="length"))
    assert [event.text for event in job.take_events()] == ["b"]
    assert job.output.outputs[0].text == "ab"
    assert job.output.finished
    assert job.output.metrics.generated_tokens == 2


def test_a_job_is_finished_when_all_its_answers_are(tokenizer: Tokenizer) -> None:
    job = make_job(tokenizer, answers=2)
    job.take(step(job, "a", tokenizer, 0, "length"))
    assert job.ended(job.requests[0])
    assert not job.output.finished
    job.abort()
    assert job.output.finished
    assert [answer.finish_reason for answer in job.output.outputs] == ["length", "abort"]


def test_an_error_keeps_what_was_written_before_it(tokenizer: Tokenizer) -> None:
    job = make_job(tokenizer)
    job.take(step(job, "a", tokenizer))
    job.take(StepOutput(job.requests[0], None, "error", error=ModelError("not finite")))
    assert job.output.outputs[0].text == "a"
    assert job.error is job.output.outputs[0].error


def test_events_are_kept_only_for_a_stream(tokenizer: Tokenizer) -> None:
    job = make_job(tokenizer)
    job.streamed = False
    job.take(step(job, "a", tokenizer, reason="length"))
    assert job.take_events() == []
    assert job.output.outputs[0].text == "a"


def test_a_failed_job_ends_with_the_error_and_keeps_what_is_complete(tokenizer: Tokenizer) -> None:
    job, told = make_job(tokenizer, answers=2), []
    job.listener = lambda job: told.append(job.output.finished)
    job.take(step(job, "a", tokenizer, 0, "length"))
    error = ModelError("broken")
    job.fail(error)
    job.abort()
    assert [answer.finish_reason for answer in job.output.outputs] == ["length", "error"]
    assert job.error is error
    assert told == [False, True, True]


def test_cached_prompt_tokens_are_those_of_the_first_request(tokenizer: Tokenizer) -> None:
    job = make_job(tokenizer, answers=2)
    job.requests[0].cached_tokens, job.requests[1].cached_tokens = 1, 2
    job.take(step(job, "a", tokenizer, 0))
    job.take(step(job, "a", tokenizer, 1))
    assert job.output.metrics.cached_tokens == 1
