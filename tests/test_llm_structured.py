"""Answers that must look like something, and thinking that must end: through the public interface."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill import LLM, SamplingParams
from qwill.errors import SettingError
from qwill.sampling_params import StructuredOutputsParams

QUESTION = [{"role": "user", "content": "how many?"}]


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(tiny_chat_model, dtype="float32", max_model_len=512, threads=1) as llm:
        yield llm


def params(seed: int = 0, thinking: int | None = None, **structured: object) -> SamplingParams:
    wanted = StructuredOutputsParams(**structured) if structured else None  # type: ignore[arg-type]
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=60, max_thinking_tokens=thinking, structured_outputs=wanted
    )


def test_each_answer_of_a_list_follows_its_own_grammar(llm: LLM) -> None:
    wanted = [params(1, regex="[a-c]{4}"), params(2, choice=["yes", "no"]), params(3), params(4, regex="[0-9]{2}-x")]
    outputs = llm.generate(["q"] * 4, wanted)
    texts = [output.outputs[0].text for output in outputs]
    assert re.fullmatch("[a-c]{4}", texts[0])
    assert texts[1] in ("yes", "no")
    assert re.fullmatch("[0-9]{2}-x", texts[3])
    assert [output.outputs[0].finish_reason for output in (outputs[0], outputs[1], outputs[3])] == ["stop"] * 3
    assert texts[2] == llm.generate("q", wanted[2])[0].outputs[0].text


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_ends_after_exactly_its_budget_and_the_answer_follows_the_grammar(llm: LLM, budget: int) -> None:
    for seed in range(5):
        own = params(seed, budget, choice=["one", "two"])
        answer = llm.chat(QUESTION, own, enable_thinking=True)[0].outputs[0]
        close = answer.token_ids.index(llm.tokenizer.special_tokens["</think>"])
        assert close <= budget
        assert close == budget or seed  # a random model may close its thinking by itself, but hardly always
        assert answer.content in ("one", "two")
        assert answer.finish_reason == "stop"


def test_a_budget_without_a_grammar_leaves_an_answer(llm: LLM) -> None:
    answer = llm.chat(QUESTION, params(3, 5), enable_thinking=True)[0].outputs[0]
    assert answer.token_ids[5] == llm.tokenizer.special_tokens["</think>"]
    assert len(answer.token_ids) > 6


@pytest.mark.parametrize(
    "settings",
    [
        {"speculative": "prompt_lookup"},
        {"kv_memory": 150_000},  # too little for all: some are preempted
        {"max_batch_tokens": 7},
    ],
)
def test_structured_answers_in_company_are_those_of_single_runs(
    tiny_chat_model: Path, settings: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
    kinds: list[dict[str, object]] = [{"json": schema}, {"regex": "[ab]{40,50}"}, {"json_object": True}, {}]
    wanted = [params(seed, seed % 9, **kinds[seed % 4]) for seed in range(16)]
    with LLM(tiny_chat_model, max_model_len=256, threads=1) as alone:
        want = [alone.chat(QUESTION, own, enable_thinking=True)[0].outputs[0].token_ids for own in wanted]
    with LLM(tiny_chat_model, threads=1, max_model_len=256, **settings) as together:
        got = together.chat([QUESTION] * len(wanted), wanted, enable_thinking=True)
        assert [output.outputs[0].token_ids for output in got] == want
        assert (together.stats.preemptions > 0) == ("kv_memory" in settings)
        assert (together.stats.drafted_tokens > 0) == ("speculative" in settings)


def test_four_answers_follow_one_grammar(llm: LLM) -> None:
    wanted = SamplingParams(n=4, seed=1, max_tokens=9, structured_outputs=StructuredOutputsParams(regex="[xyz]{3}"))
    texts = [answer.text for answer in llm.generate("q", wanted)[0].outputs]
    assert all(re.fullmatch("[xyz]{3}", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_bad_grammar_is_refused_and_the_next_request_works(llm: LLM) -> None:
    for bad in ({"regex": "["}, {"json": {"type": "no such type"}}, {"grammar": "start: nowhere"}):
        with pytest.raises(SettingError, match="structured_outputs"):
            llm.generate("q", params(**bad))
    assert llm.generate("q", params(5))[0].finished
    assert not llm.service.busy
