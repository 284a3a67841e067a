"""A trace watches one LLM for the time of a block: no result changes, and nothing is left behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from qwill import LLM, SamplingParams
from qwill.errors import CapacityError, PromptError, QwillError, UsageError
from qwill.runner import ModelRunner
from qwill.tracing import trace

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = "Shall I compare thee to a summer's day? 你好 🙂"
FULL: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "threads": 1}


@pytest.mark.parametrize("settings", [{}, {"quant": "int4"}, {"dtype": "float16"}, {"kv_dtype": "int8"}], ids=str)
def test_tracing_changes_no_result(settings: dict[str, Any], tiny_chat_model: Path) -> None:
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=20, ignore_eos=True, logprobs=3)
    prompts = [PROMPT, "b", "To be, or not to be"]
    with LLM(tiny_chat_model, max_model_len=256, threads=1, **settings) as llm:
        before = [output.outputs[0] for output in llm.generate(prompts, params, cache_salt="before")]
        with trace(llm, residuals=True, attention=True, mlp=True):
            inside = [output.outputs[0] for output in llm.generate(prompts, params, cache_salt="inside")]
        after = [output.outputs[0] for output in llm.generate(prompts, params, cache_salt="after")]
    assert [o.token_ids for o in inside] == [o.token_ids for o in before] == [o.token_ids for o in after]
    assert [o.logprobs for o in inside] == [o.logprobs for o in before]


def test_nothing_is_left_after_the_block(llm: LLM) -> None:
    def state() -> tuple[Any, int]:
        runner = llm.service.between_steps(lambda engine: engine.runner)
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in runner.model.modules())
        return runner, hooks

    runner, _ = state()
    with pytest.raises(PromptError), trace(llm):
        llm.generate("", GREEDY)
    assert state() == (runner, 0)
    assert isinstance(runner, ModelRunner)


def test_one_trace_at_a_time(llm: LLM) -> None:
    with trace(llm), pytest.raises(UsageError, match="being traced already"), trace(llm):
        pass
    with trace(llm):
        pass


def test_an_llm_that_is_closed_inside_the_block_stays_closed(tiny_chat_model: Path) -> None:
    llm = LLM(tiny_chat_model, **FULL)
    with trace(llm, residuals=True) as seen:
        llm.generate("a", GREEDY)
        llm.close()
    assert len(seen.request().token_ids) == 9
    with pytest.raises(UsageError, match="closed"):
        seen.logits(seen.request().residuals[-1])
    with pytest.raises(QwillError), trace(llm):
        pass


def test_more_than_may_be_kept_is_not_kept_and_says_so(llm: LLM) -> None:
    expected = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    with trace(llm, residuals=True, max_bytes=10_000) as seen:
        again = llm.generate(PROMPT, GREEDY, cache_salt="full")
    assert again[0].outputs[0].token_ids == expected
    with pytest.raises(CapacityError, match="as much as it may"):
        _ = seen.request().residuals
    assert len(seen.ops) > 0


def test_requests_of_one_name_are_kept_apart(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=5, ignore_eos=True)
    with trace(llm, residuals=True) as seen:
        outputs = llm.generate("To be", params, request_id="mine")[0].outputs
        llm.generate("Not", GREEDY, request_id="mine")
    assert list(seen.requests) == ["mine", "mine#1", "mine#2"]
    assert [r.answer_token_ids for r in seen.requests.values()][:2] == [o.token_ids for o in outputs]


def test_another_llm_in_another_thread_is_not_seen(llm: LLM, tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, **FULL) as other, trace(llm) as seen:
        thread = threading.Thread(target=lambda: [other.generate("a" * 30, GREEDY) for _ in range(5)])
        thread.start()
        llm.generate("bc", GREEDY)
        thread.join()
    assert {op.step for op in seen.ops} == set(range(9))
    assert {op.op for op in seen.ops if not op.module} == {"rows"}
    assert [sum(op.step == step and op.op == "attention" for op in seen.ops) for step in range(9)] == [3] * 9


def test_a_step_that_fails_leaves_no_trace(tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(tiny_chat_model, **FULL) as llm:
        model = llm.service.between_steps(lambda engine: engine.runner.model)
        with trace(llm) as seen:
            hook = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(QwillError):
                llm.generate("a", GREEDY)
            hook.remove()
            assert (seen.ops, seen.steps) == ([], [])
            llm.generate("a", GREEDY)
        assert {op.step for op in seen.ops} == set(range(9))
        assert next(op for op in seen.ops if op.op == "attention").module == "model.layers.0.self_attn"
