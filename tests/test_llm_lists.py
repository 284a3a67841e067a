"""Lists of prompts: own parameters, more than the queue holds, progress, Ctrl-C, abort, deadlines, the prefix cache."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qwill import LLM, SamplingParams
from qwill.errors import DeadlineError, SettingError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def narrow(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(tiny_chat_model, max_model_len=2000, max_num_seqs=2, max_queue=4, threads=1) as llm:
        yield llm


@pytest.fixture
def llm(narrow: LLM) -> Iterator[LLM]:
    """A model that computes two requests at once, of which nothing may be left in the engine afterwards."""
    yield narrow
    engine = narrow.service.engine
    assert engine is not None
    assert not narrow.service.busy
    assert not engine.busy
    assert engine.pool.num_free == engine.runner.kv_cache.num_blocks


class Terminal(io.StringIO):
    """Somebody looks on."""

    def isatty(self) -> bool:
        return True


def later(llm: LLM, act: Callable[[], object]) -> threading.Thread:
    """Act when the model is in the middle of something."""

    def work() -> None:
        end = time.monotonic() + 20
        while not llm.service._jobs and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.05)
        act()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_each_prompt_has_its_own_parameters(llm: LLM) -> None:
    several = [GREEDY, SamplingParams(seed=7, n=2, max_tokens=4), SamplingParams(seed=1, max_tokens=1)]
    together = llm.generate(["a", "b", "c"], several)
    for prompt, params, output in zip("abc", several, together, strict=True):
        alone = llm.generate(prompt, params)[0]
        assert [answer.token_ids for answer in output.outputs] == [answer.token_ids for answer in alone.outputs]
    assert [len(output.outputs[0].token_ids) for output in llm.chat([TALK] * 3, several)][2] == 1


def test_a_list_longer_than_the_queue_is_fed_as_room_appears(llm: LLM) -> None:
    prompts = [[number % 250, number // 250] for number in range(300)]
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert all(len(output.outputs[0].token_ids) == 2 for output in outputs)
    for number in (0, 150, 299):
        assert outputs[number].outputs[0].token_ids == llm.generate([prompts[number]], params)[0].outputs[0].token_ids


def test_one_refused_request_of_a_list_leaves_the_others_alone(llm: LLM) -> None:
    bad = SamplingParams(logit_bias={310: 1.0}, max_tokens=2)
    outputs = llm.generate(["a", "b"], [bad, GREEDY])
    assert isinstance(outputs[0].outputs[0].error, SettingError)
    assert outputs[1].outputs[0].finish_reason == "length"
    with pytest.raises(SettingError, match="logit_bias"):
        llm.generate("a", bad)


def test_ctrl_c_ends_a_list_and_leaves_nothing(llm: LLM) -> None:
    main = threading.main_thread().ident
    assert main is not None
    before = signal.getsignal(signal.SIGINT)
    for _ in range(5):
        thread = later(llm, lambda: signal.pthread_kill(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b", "c", "d", "e"] * 20, ENDLESS)
        thread.join()
        assert not llm.service.busy
    assert signal.getsignal(signal.SIGINT) is before
    assert llm.generate("a", GREEDY)[0].finished


def test_ctrl_c_ends_a_stream_and_leaves_nothing(llm: LLM) -> None:
    main = threading.main_thread().ident
    assert main is not None
    thread = later(llm, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        list(llm.stream("a", ENDLESS))
    thread.join()


def test_another_thread_may_abort_by_name(llm: LLM) -> None:
    names = [f"r{number}" for number in range(9)]
    thread = later(llm, lambda: [llm.abort(name) for name in (names[0], names[1], names[8])])  # the last still waits
    params = [ENDLESS] * 2 + [GREEDY] * 6 + [ENDLESS]
    outputs = llm.generate(list("abcdefghi"), params, request_id=names)
    thread.join()
    assert [output.request_id for output in outputs] == names
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort"] * 2 + ["length"] * 6 + ["abort"]
    assert outputs[0].outputs[0].text
    assert not llm.abort("r0")


def test_a_timeout_ends_an_answer_with_a_deadline_error(llm: LLM) -> None:
    with pytest.raises(DeadlineError):
        llm.generate("a", ENDLESS, timeout=0.05)
    with pytest.raises(DeadlineError):
        list(llm.stream_chat(TALK, ENDLESS, timeout=0.05))
    outputs = llm.generate(["a"] * 10, ENDLESS, timeout=0.2)
    assert all(isinstance(output.outputs[0].error, DeadlineError) for output in outputs)


def test_priority_is_served_first(llm: LLM) -> None:
    streams = [llm.stream("a", ENDLESS) for _ in range(2)]  # both seats are taken
    for stream in streams:
        next(stream)
    jobs = [llm.intake.prompts("x", GREEDY, {"priority": priority})[0] for priority in (5, 1)]
    llm.service.submit(jobs)
    streams[0].close()
    while not jobs[1].output.finished:
        llm.service.step()
    assert not jobs[0].output.outputs[0].token_ids
    streams[1].close()
    llm.service.drop(jobs)


def test_prompt_tokens_from_the_prefix_cache_are_told(llm: LLM) -> None:
    prompt = [9] * 100
    assert llm.generate(prompt, GREEDY, cache_salt="first")[0].metrics.cached_tokens == 0
    assert llm.generate(prompt, GREEDY, cache_salt="first")[0].metrics.cached_tokens == 99
    assert llm.generate(prompt, GREEDY, cache_salt="second")[0].metrics.cached_tokens == 0


def test_progress_is_shown_for_lists_on_a_terminal_and_else_on_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(prompts: list[str], *, progress: bool | None = None, stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        llm.generate(prompts, GREEDY, progress=progress)
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    two = shown(["a", "b"], stream=Terminal())
    assert "2/2 requests" in two
    assert "tok/s" in two
    assert shown(["a"], stream=Terminal()) == ""
    assert shown(["a", "b"], stream=io.StringIO()) == ""
    assert shown(["a", "b"], progress=False, stream=Terminal()) == ""
    lines = shown(["a", "b"], progress=True, stream=io.StringIO())
    assert "generate: 100 %" in lines
    assert "tok/s" in lines
    monkeypatch.setattr(sys, "stderr", None)
    assert llm.generate(["a", "b"], GREEDY)[1].finished
