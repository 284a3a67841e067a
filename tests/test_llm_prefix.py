"""Conversations go on from what is cached, to the token, although templates rewrite the end of the last turn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qwill import LLM, SamplingParams
from qwill.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def qwen3_like(
    tiny_checkpoint: Callable[..., Path], qwen3_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A tiny random model with Qwen3's own vocabulary and chat template."""
    folder = tmp_path_factory.mktemp("qwen3") / "tiny-qwen3"
    shutil.copytree(tiny_checkpoint("qwen3", vocab_size=151936, hidden_size=16), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(qwen3_tokenizer_dir / name, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
    return folder


@pytest.fixture(scope="module")
def warm(qwen3_like: Path) -> Iterator[LLM]:
    with LLM(qwen3_like, max_model_len=1024, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def cold(qwen3_like: Path) -> Iterator[LLM]:
    with LLM(qwen3_like, max_model_len=1024, threads=1, prefix_cache=False) as llm:
        yield llm


def common(some: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(some), len(other)) and some[length] == other[length]:
        length += 1
    return length


@pytest.mark.weights
@pytest.mark.parametrize("thinking", [None, False])
def test_a_second_turn_computes_only_what_the_template_changed(warm: LLM, cold: LLM, thinking: bool | None) -> None:
    messages = [
        {"role": "system", "content": "You are terse. 你是一个助手。"},
        {"role": "user", "content": "Tell me a story of a fox, a hen and a very long road. 🦊"},
    ]
    salt = str(thinking)
    first = warm.chat(messages, GREEDY, enable_thinking=thinking, cache_salt=salt)[0]
    messages += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "Go on, and make it longer."},
    ]
    second = warm.chat(messages, GREEDY, enable_thinking=thinking, cache_salt=salt)[0]
    anew = cold.chat(messages, GREEDY, enable_thinking=thinking)[0]
    computed = [*first.prompt_token_ids, *first.outputs[0].token_ids[:-1]]  # the last token was chosen, not computed
    assert second.metrics.cached_tokens == common(computed, second.prompt_token_ids) > 40
    assert anew.metrics.cached_tokens == 0
    assert same(second, anew)


def same(one: RequestOutput, other: RequestOutput) -> bool:
    """Equal tokens and, to the bit, log probabilities."""
    answer, again = one.outputs[0], other.outputs[0]
    return (answer.token_ids, answer.logprobs) == (again.token_ids, again.logprobs)


def test_salts_keep_callers_apart(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, max_model_len=256, threads=1) as llm:
        counts = [
            llm.generate("a prompt that two callers share", GREEDY, cache_salt=salt)[0].metrics.cached_tokens
            for salt in ("one", "other", "one")
        ]
    assert counts == [0, 0, 30]
