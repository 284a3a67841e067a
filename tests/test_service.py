"""Jobs in an engine: every one ends once, whoever steps, drops, aborts or closes, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qwill import LLM
from qwill import service as service_module
from qwill.engine import Engine, StepOutput
from qwill.errors import EngineError, OverloadedError, SettingError, UsageError
from qwill.intake import Intake
from qwill.job import Job
from qwill.request import Request
from qwill.sampler import Sampled
from qwill.sampling_params import SamplingParams
from qwill.service import Service

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class NarrowEngine:
    """A real engine with a queue of four, all in all, which also remembers how full it was."""

    MOST = 4

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inside: list[Request] = []
        self.most = 0

    @property
    def room(self) -> int:
        return self.MOST - len(self.inside)

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def add(self, request: Request) -> None:
        if not self.room:
            raise OverloadedError("the queue is full")
        self.engine.add(request)
        self.inside.append(request)
        self.most = max(self.most, len(self.inside))

    def finish(self, request: Request) -> None:
        self.engine.finish(request)
        self.inside = [other for other in self.inside if other is not request]

    def step(self) -> list[StepOutput]:
        steps = self.engine.step()
        ended = {id(step.request) for step in steps if step.finish_reason}
        self.inside = [request for request in self.inside if id(request) not in ended]
        return steps


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(tiny_chat_model, max_model_len=2000, threads=1) as llm:
        yield llm


@pytest.fixture
def intake(llm: LLM) -> Intake:
    return llm.intake


@pytest.fixture
def engine(llm: LLM) -> Iterator[NarrowEngine]:
    inner = llm.service.engine
    assert inner is not None
    engine = NarrowEngine(inner)
    yield engine
    assert not engine.busy
    assert engine.inside == []
    assert inner.pool.num_free == inner.runner.kv_cache.num_blocks


def make_service(engine: Any) -> Service:
    return Service(engine, reserve=NarrowEngine.MOST // 2)


def make(intake: Intake, prompts: Sequence[str], params: Any = GREEDY, **options: Any) -> list[Job]:
    return intake.prompts(list(prompts), params, options)


def run(service: Service, jobs: Sequence[Job]) -> list[list[int]]:
    """Step until all are finished; the ids of each first answer."""
    while not all(job.output.finished for job in jobs):
        service.step()
    return [job.output.outputs[0].token_ids for job in jobs]


def test_jobs_run_to_their_end_as_if_alone(llm: LLM, intake: Intake, engine: NarrowEngine) -> None:
    service, jobs = make_service(engine), make(intake, "abc")
    service.submit(jobs)
    assert service.busy
    got = run(service, jobs)
    assert got == [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in "abc"]
    assert not service.busy


def test_a_full_queue_ends_a_job_but_lets_a_list_wait(llm: LLM, intake: Intake, engine: NarrowEngine) -> None:
    service = make_service(engine)
    single = make(intake, "abcde")
    service.submit(single)
    run(service, single)
    assert [type(job.error) for job in single] == [type(None)] * 4 + [OverloadedError]
    engine.most = 0
    many = make(intake, "abcdefghijklmnopqrst")
    service.submit(many, patient=True)
    assert run(service, many) == [llm.generate(job.output.prompt, GREEDY)[0].outputs[0].token_ids for job in many]
    assert engine.most == engine.MOST // 2


def test_a_long_list_leaves_room_for_others(intake: Intake, engine: NarrowEngine) -> None:
    service = make_service(engine)
    lists = [make(intake, "abcdefgh"), make(intake, "ab")]
    for jobs in lists:
        service.submit(jobs, patient=True)
    service.step()
    single = make(intake, "x")
    service.submit(single)
    run(service, [*single, *lists[1]])
    assert single[0].error is None
    assert not lists[0][-1].output.finished, "the lists take turns"
    run(service, lists[0])


def test_a_job_of_more_answers_than_the_queue_holds_is_refused_whole(intake: Intake, engine: NarrowEngine) -> None:
    service = make_service(engine)
    jobs = make(intake, "ab", SamplingParams(n=5, max_tokens=2))
    service.submit(jobs, patient=True)
    run(service, jobs)
    assert [type(job.error) for job in jobs] == [OverloadedError] * 2


def test_what_the_engine_refuses_ends_with_that_error_alone(intake: Intake, engine: NarrowEngine) -> None:
    service = make_service(engine)
    bad = SamplingParams(logit_bias={10**6: 1.0}, max_tokens=2)
    jobs = make(intake, "ab", [bad, GREEDY])
    service.submit(jobs)
    run(service, jobs)
    assert isinstance(jobs[0].error, SettingError)
    assert jobs[1].error is None


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_ends_a_job_wherever_it_is(intake: Intake, engine: NarrowEngine, steps: int) -> None:
    service = make_service(engine)
    jobs = [*make(intake, "a", ENDLESS, request_id="first"), *make(intake, "b")]
    jobs[0].streamed = True
    service.submit(jobs)
    for _ in range(steps):
        service.step()
    assert service.abort("first")
    assert not service.abort("nobody")
    run(service, jobs)
    answer = jobs[0].output.outputs[0]
    assert (answer.finish_reason, len(answer.token_ids)) == ("abort", steps)
    assert "".join(event.text for event in jobs[0].take_events()) == answer.text
    assert not service.abort("first")


def test_a_waiting_list_can_be_dropped(intake: Intake, engine: NarrowEngine) -> None:
    service, jobs = make_service(engine), make(intake, "abcdefghijkl", ENDLESS)
    service.submit(jobs, patient=True)
    service.step()
    service.drop(jobs)
    assert not service.busy
    assert not service._lists or not service._lists[0]
    assert {job.output.outputs[0].finish_reason for job in jobs} == {"abort"}


def test_several_tokens_of_one_step_end_at_the_stop_string(intake: Intake, engine: NarrowEngine) -> None:
    class Hasty(NarrowEngine):
        """Gives three tokens of each request at once, as speculation does."""

        def step(self) -> list[StepOutput]:
            ids = intake._tokenizer.encode("xyz")
            return [StepOutput(request, Sampled(i, None, [])) for request in self.inside for i in ids]

    hasty = Hasty(engine.engine)
    service = make_service(hasty)
    jobs = make(intake, ["hi"], SamplingParams(stop="y"))
    service.submit(jobs)
    run(service, jobs)
    answer = jobs[0].output.outputs[0]
    assert (answer.text, len(answer.token_ids), answer.stop_reason) == ("x", 2, "y")
    assert not hasty.busy


def test_a_job_whose_text_raises_something_unforeseen_ends_alone(
    intake: Intake, engine: NarrowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, jobs = make_service(engine), make(intake, "ab")

    def fail(_: StepOutput) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(jobs[0], "take", fail)
    service.submit(jobs)
    run(service, jobs)
    assert isinstance(jobs[0].error, EngineError)
    assert isinstance(jobs[0].error.__cause__, ZeroDivisionError)
    assert jobs[1].output.outputs[0].finish_reason == "length"


def test_closing_ends_all_jobs_with_the_reason_and_so_later_calls(intake: Intake, engine: NarrowEngine) -> None:
    service, jobs = make_service(engine), make(intake, "abcdefgh", ENDLESS)
    service.submit(jobs, patient=True)
    service.step()
    for request in engine.inside:
        engine.finish(request)
    cause = ValueError("x")
    why = EngineError("it broke")
    why.__cause__ = cause
    service.close(why)
    service.close()
    assert not service.busy
    assert all(isinstance(job.error, EngineError) and job.error.__cause__ is cause for job in jobs)
    for call in (service.step, service.check, lambda: service.submit(jobs), lambda: service.between_steps(id)):
        with pytest.raises(EngineError, match="it broke"):
            call()
    service.drop(jobs)
    assert not service.abort("0")


def test_threads_that_step_take_turns(intake: Intake, engine: NarrowEngine) -> None:
    """One with long work does not keep the lock from one with short work."""
    service = make_service(engine)
    long, short = make(intake, "a", ENDLESS), make(intake, "b")
    steps = {"long": 0, "short": 0}

    def work(name: str, jobs: list[Job]) -> None:
        service.submit(jobs)
        while not jobs[0].output.finished:
            service.step()
            steps[name] += 1

    first = threading.Thread(target=work, args=("long", long))
    first.start()
    while steps["long"] < 5:
        time.sleep(0.001)
    work("short", short)
    assert not long[0].output.finished
    service.drop(long)
    first.join()


def test_who_does_not_step_gets_the_lock_after_a_step_too(
    intake: Intake, engine: NarrowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TURN_SECONDS", 0.2)
    service, jobs = make_service(engine), make(intake, "a", ENDLESS)
    service.submit(jobs)
    got_it = threading.Event()
    other = threading.Thread(target=service.between_steps, args=(lambda _: got_it.set(),))
    step = engine.step

    def step_while_another_waits() -> list[StepOutput]:
        other.start()
        time.sleep(0.05)
        return step()

    engine.step = step_while_another_waits  # type: ignore[method-assign]
    service.step()
    assert got_it.is_set()
    other.join()
    service.drop(jobs)


def test_ctrl_c_waits_for_the_end_of_a_step(intake: Intake, engine: NarrowEngine) -> None:
    service, jobs = make_service(engine), make(intake, "ab")
    service.submit(jobs)
    step, seen = engine.step, []

    def interrupted() -> list[StepOutput]:
        signal.raise_signal(signal.SIGINT)
        seen.append("went on")
        return step()

    engine.step = interrupted  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        service.step()
    assert seen == ["went on"]
    assert signal.getsignal(signal.SIGINT) is before
    assert [len(job.output.outputs[0].token_ids) for job in jobs] == [1, 1]
    del engine.step
    run(service, jobs)


def test_ctrl_c_does_not_wait_for_a_step_that_hangs(
    intake: Intake, engine: NarrowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PATIENCE_SECONDS", 0.05)
    service, jobs = make_service(engine), make(intake, "a")
    service.submit(jobs)

    def stuck() -> list[StepOutput]:
        while True:
            signal.raise_signal(signal.SIGINT)

    engine.step = stuck  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        service.step()
    del engine.step
    run(service, jobs)


def test_a_listener_hears_of_every_change(intake: Intake, engine: NarrowEngine) -> None:
    service, heard = make_service(engine), []
    [job] = make(intake, "a")
    job.listener = lambda job: heard.append(job.output.finished)
    service.submit([job])
    run(service, [job])
    assert heard == [False] * 5 + [True]


def test_a_closed_service_says_so(intake: Intake, engine: NarrowEngine) -> None:
    service = make_service(engine)
    service.close()
    with pytest.raises(UsageError, match="closed"):
        service.submit(make(intake, "a"))


def test_a_signal_s_handler_may_close_in_the_middle_of_a_step(tiny_chat_model: Path) -> None:
    """Where it interrupts this thread's own step, it must not wait for that step."""
    code = f"""
import os, signal, threading, time
from qwill import LLM, SamplingParams
from qwill.errors import UsageError
llm = LLM({str(tiny_chat_model)!r}, threads=1, max_model_len=512)
looked = []
def close(number, frame):
    for use in (lambda: llm.stats, lambda: llm.generate([1])):
        try:
            use()
        except UsageError as error:
            looked.append(error)
    llm.close()
signal.signal(signal.SIGTERM, close)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(20)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
try:
    while True:
        llm.generate([[1, 2]] * 20, SamplingParams(max_tokens=400, ignore_eos=True))
except UsageError as error:
    print(error.what, len(looked), llm.service.engine, llm.service.busy)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("this LLM is closed 2 None False\n", 0), result.stderr
