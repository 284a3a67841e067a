"""AsyncLLM gives what LLM gives, whoever cancels, closes or forgets what, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill import AsyncLLM, SamplingParams
from qwill.errors import EngineError, OverloadedError, PromptError, SettingError, UsageError
from qwill.outputs import RequestOutput, StreamEvent

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def shared(tiny_chat_model: Path) -> Iterator[AsyncLLM]:
    model = AsyncLLM(tiny_chat_model, max_model_len=2000, max_num_seqs=16, threads=1)
    yield model
    asyncio.run(model.aclose())


@pytest.fixture
def model(shared: AsyncLLM) -> Iterator[AsyncLLM]:
    """The model, of which nothing may be left in the engine afterwards."""
    yield shared
    wait_until(lambda: idle(shared))


@pytest.fixture
def own_model(tiny_chat_model: Path) -> AsyncLLM:
    """One to close or to break."""
    return AsyncLLM(tiny_chat_model, max_model_len=2000, threads=1)


def idle(model: AsyncLLM) -> bool:
    engine = model.llm.service.engine
    assert engine is not None
    return not (model.llm.service.busy or engine.busy) and engine.pool.num_free == engine.runner.kv_cache.num_blocks


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)


async def soon(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.001)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run, but a hang is a failure."""
    return asyncio.run(asyncio.wait_for(main, 60))


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [answer.token_ids for output in outputs for answer in output.outputs]


async def collect(stream: Any) -> list[StreamEvent]:
    return [event async for event in stream]


def test_generate_and_chat_equal_those_that_wait(model: AsyncLLM) -> None:
    prompts, several = ["a", [5, 6, 7], "你好"], [GREEDY, SamplingParams(seed=1, n=2, max_tokens=4), GREEDY]
    assert ids(run(model.generate(prompts, several))) == ids(model.llm.generate(prompts, several))
    assert ids(run(model.chat(TALK, GREEDY))) == ids(model.llm.chat(TALK, GREEDY))


def test_streams_give_the_events_of_those_that_wait(model: AsyncLLM) -> None:
    def joined(events: list[StreamEvent]) -> list[str]:
        kinds = ("thinking", "content", "tool_call", "done")
        return ["".join(event.text for event in events if event.kind == kind) for kind in kinds]

    events = run(collect(model.stream("Hello", GREEDY)))
    assert joined(events) == joined(list(model.llm.stream("Hello", GREEDY)))
    assert (events[-1].kind, events[-1].output.finished) == ("done", True)
    options = {"enable_thinking": True}
    events = run(collect(model.stream_chat(TALK, GREEDY, **options)))
    assert joined(events) == joined(list(model.llm.stream_chat(TALK, GREEDY, **options)))


def test_200_tasks_with_random_cancels_equal_single_runs(model: AsyncLLM) -> None:
    chance = random.Random(3)
    work = [([chance.randrange(200) for _ in range(chance.randint(1, 60))], chance.randint(1, 24)) for _ in range(200)]
    cancelled = {number for number in range(200) if chance.random() < 0.4}

    def params(most: int) -> SamplingParams:
        return SamplingParams(temperature=0.8, seed=most, max_tokens=most, ignore_eos=True)

    async def one(number: int) -> list[int]:
        prompt, most = work[number]
        if number % 2:
            return ids(await model.generate(prompt, params(most)))[0]
        return [i for event in await collect(model.stream(prompt, params(most))) for i in event.token_ids]

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(one(number)) for number in range(200)]
        for number in sorted(cancelled, key=lambda _: chance.random()):
            await asyncio.sleep(chance.random() * 0.02)
            tasks[number].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(main())
    wait_until(lambda: idle(model))
    broken = {number for number, result in enumerate(results) if isinstance(result, BaseException)}
    assert broken <= cancelled
    assert len(broken) > 20
    assert all(isinstance(results[number], asyncio.CancelledError) for number in broken)
    whole = [number for number in range(200) if number not in broken]
    alone = model.llm.generate([work[i][0] for i in whole], [params(work[i][1]) for i in whole])
    assert [results[number] for number in whole] == ids(alone)


@pytest.mark.parametrize("when", ["at once", "while queued", "during prefill", "during decode"])
def test_cancelling_frees_everything(model: AsyncLLM, when: str) -> None:
    service = model.llm.service
    prompt = [7] * (1900 if when == "during prefill" else 3)

    async def main() -> None:
        others = [asyncio.create_task(model.generate("x", ENDLESS)) for _ in range(16 if when == "while queued" else 0)]
        await soon(lambda: len(service._jobs) == len(others))
        task = asyncio.create_task(model.generate(prompt, ENDLESS, request_id="this"))
        if when != "at once":
            await soon(lambda: any(job.output.request_id == "this" for job in service._jobs.values()))
        if when == "during decode":
            job = next(iter(service._live.values()))
            await soon(lambda: job.output.metrics.generated_tokens > 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await soon(lambda: not model.abort("this"))
        assert len(service._live) == len(others)
        for other in others:
            other.cancel()

    run(main())


def test_closing_a_stream_frees_everything(model: AsyncLLM) -> None:
    async def main() -> None:
        stream = model.stream("Hello", ENDLESS)
        await anext(stream)
        await stream.aclose()
        await soon(lambda: idle(model))
        async for _ in model.stream("Hello", ENDLESS):
            break  # dropped without closing
        gc.collect()
        await soon(lambda: idle(model))
        await model.stream("never begun").aclose()

    run(main())


def test_a_loop_that_vanishes_takes_its_requests_along(model: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    stream = model.stream("Hello", ENDLESS)
    assert loop.run_until_complete(anext(stream)).token_ids
    service = model.llm.service
    [job] = service._live.values()
    loop.close()
    wait_until(lambda: idle(model))
    assert job.output.outputs[0].finish_reason == "abort"
    del stream


def test_a_slow_reader_keeps_nobody_waiting_and_loses_nothing(model: AsyncLLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)

    async def main() -> list[StreamEvent]:
        stream = model.stream("Hello", params)
        first = await anext(stream)
        await soon(lambda: not model.llm.service.busy)
        return [first, *await collect(stream)]

    assert [i for event in run(main()) for i in event.token_ids] == ids(model.llm.generate("Hello", params))[0]


def test_threads_with_a_loop_each_share_the_engine(model: AsyncLLM) -> None:
    got: dict[int, list[list[int]]] = {}

    async def main(first: int) -> list[list[int]]:
        calls = [model.generate([first, second], GREEDY) for second in range(8)]
        return [ids(outputs)[0] for outputs in await asyncio.gather(*calls)]

    def work(first: int) -> None:
        got[first] = run(main(first))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    waited = ids(model.llm.generate([[2, second] for second in range(8)], GREEDY))  # and one that waits, beside them
    for thread in threads:
        thread.join()
    for first in range(3):
        want = [ids(model.llm.generate([first, second], GREEDY))[0] for second in range(8)]
        assert (got[first] if first < 2 else waited) == want


def test_one_loop_after_another_may_use_it(model: AsyncLLM) -> None:
    first, second = (run(model.generate("Hello", GREEDY)) for _ in range(2))
    assert ids(first) == ids(second)
    assert len(model._bells) == 1, "bells of closed loops are taken down"


def test_another_thread_may_abort_by_name(model: AsyncLLM) -> None:
    async def main() -> RequestOutput:
        task = asyncio.create_task(model.generate("Hello", ENDLESS, request_id="mine"))
        await soon(lambda: bool(model.llm.service._jobs))
        assert await asyncio.to_thread(model.abort, "mine")
        [output] = await task
        return output

    assert run(main()).outputs[0].finish_reason == "abort"
    assert not model.abort("mine")


def test_errors_reach_the_caller(model: AsyncLLM) -> None:
    with pytest.raises(PromptError):
        run(model.generate(""))
    with pytest.raises(SettingError, match="did you mean timeout"):
        run(model.generate("a", timeot=5))
    with pytest.raises(SettingError, match="one answer"):
        run(collect(model.stream("a", SamplingParams(n=2))))
    with pytest.raises(SettingError, match="logit_bias"):
        run(model.generate("a", SamplingParams(logit_bias={310: 1.0})))


def test_a_timeout_is_a_deadline_error(model: AsyncLLM) -> None:
    from qwill.errors import DeadlineError

    with pytest.raises(DeadlineError):
        run(model.generate("a", ENDLESS, timeout=0.05))
    with pytest.raises(DeadlineError):
        run(collect(model.stream("a", ENDLESS, timeout=0.05)))
    late, fine = run(model.generate(["a", "b"], [ENDLESS, SamplingParams(max_tokens=1)], timeout=0.3))
    assert isinstance(late.outputs[0].error, DeadlineError)
    assert fine.outputs[0].error is None


def test_a_full_queue_refuses_single_calls_and_lets_lists_wait(tiny_chat_model: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(tiny_chat_model, max_model_len=2000, max_num_seqs=2, max_queue=4, threads=1) as model:
            want = ids(model.llm.generate(["x", "y"] * 10, GREEDY))
            calls = [asyncio.create_task(model.generate("a", ENDLESS)) for _ in range(6)]
            await soon(lambda: len(model.llm.service._jobs) == 6)
            with pytest.raises(OverloadedError):
                await model.generate("a", GREEDY)
            with pytest.raises(OverloadedError):
                await collect(model.stream("a", GREEDY))
            many = asyncio.create_task(model.generate(["x", "y"] * 10, GREEDY))
            await asyncio.sleep(0.02)
            for call in calls:
                call.cancel()
            assert ids(await many) == want

    run(main())


def test_closing_ends_running_calls_with_a_typed_error(own_model: AsyncLLM) -> None:
    async def main() -> None:
        calls = [
            asyncio.create_task(own_model.generate("a", ENDLESS)),
            asyncio.create_task(own_model.generate(["a", "b"], ENDLESS)),
            asyncio.create_task(collect(own_model.stream("a", ENDLESS))),
        ]
        await soon(lambda: len(own_model.llm.service._jobs) == 4)
        await own_model.aclose()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, UsageError)
            assert "closed" in str(result)
        await own_model.aclose()
        with pytest.raises(UsageError, match="closed"):
            await own_model.generate("a")
        with pytest.raises(UsageError, match="closed"):
            await anext(own_model.stream("a"))
        assert not own_model._stepper._thread.is_alive()

    run(main())


def test_an_engine_that_dies_fails_every_call_and_never_hangs(own_model: AsyncLLM) -> None:
    async def main() -> None:
        calls = [
            asyncio.create_task(own_model.generate("a", ENDLESS)),
            asyncio.create_task(own_model.generate(["a"] * 3, ENDLESS)),
            asyncio.create_task(collect(own_model.stream("a", ENDLESS))),
        ]
        await soon(lambda: len(own_model.llm.service._jobs) == 5)
        engine = own_model.llm.service.engine

        def fail() -> None:
            raise ZeroDivisionError("a defect")

        engine.step = fail  # type: ignore[union-attr, method-assign, assignment]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, EngineError)
            assert isinstance(result.__cause__, ZeroDivisionError)
        for _ in range(2):
            with pytest.raises(EngineError, match="a defect"):
                await own_model.generate("a")
        with pytest.raises(EngineError, match="a defect"):
            own_model.llm.generate("a")

    run(main())
    run(own_model.aclose())


def test_the_thread_sleeps_without_work_and_ends_with_the_object(tiny_chat_model: Path) -> None:
    model = AsyncLLM(tiny_chat_model, max_model_len=64, threads=1)
    run(model.generate("a", GREEDY))
    thread = model._stepper._thread
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1, "it waits busily"
    assert thread.is_alive()
    llm = model.llm
    del model
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert llm.generate("a", GREEDY)[0].finished
    llm.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_that_the_model_is_not_its_own(model: AsyncLLM) -> None:
    run(model.generate("x", GREEDY))
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                asyncio.run(model.generate("x", GREEDY))
            except UsageError:
                asyncio.run(model.aclose())
                code = 7
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


PROGRAM = """
import asyncio, sys
from qwill import AsyncLLM, SamplingParams
model = AsyncLLM(sys.argv[1], max_model_len=2000, threads=1)
async def main():
    endless = SamplingParams(temperature=0.0, ignore_eos=True)
    forgotten = asyncio.create_task(model.generate("a", endless))
    async for event in model.stream("b", endless):
        print("an event", flush=True)
        break
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("bye")
"""


def test_a_program_that_forgets_to_close_ends(tiny_chat_model: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_chat_model)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, "an event\nbye\n"), result.stderr
