"""End to end on real weights: names, files, tokenizer, template, dequantization, model and engine together.

The oracle is `transformers` on the same GGUF file, in fp32. Its greedy tokens are found in one pass: fed our prompt and
answer, it must itself prefer each of our tokens at its place, which by induction is what generating would give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.ops import native_ops
from qwill.sampling_params import StructuredOutputsParams

pytestmark = pytest.mark.weights

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
PROMPTS = [
    "中国的首都是北京，它有三千多年的历史。北京的",
    "The three laws of motion were first written down by Isaac Newton. The first law says that",
    "def quicksort(items: list[int]) -> list[int]:\n    ",
    "🎉🥳 Happy birthday! 👨‍👩‍👧‍👦 I wish you",
]
QUESTIONS = ["用一句话解释什么是递归。", "Name the four seasons. 🍂"]


def load_oracle(gguf: Path) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)


@pytest.fixture(scope="module", params=["smollm2_gguf", "qwen_coder_gguf"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, Any]]:
    gguf: Path = request.getfixturevalue(request.param)
    with LLM(gguf, dtype="float32", max_model_len=1024) as llm:
        yield llm, load_oracle(gguf)


def preferred(oracle: Any, prompt: list[int], answer: list[int], vocab_size: int) -> list[int]:
    """What the oracle would choose at each place of the answer."""
    with torch.no_grad():
        logits = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1, :vocab_size]
    choices: list[int] = logits.argmax(-1).tolist()
    return choices


def test_greedy_tokens_equal_transformers(pair: tuple[LLM, Any]) -> None:
    llm, oracle = pair
    for output in llm.generate(PROMPTS, GREEDY):
        answer = output.outputs[0].token_ids
        assert len(answer) == 64
        assert answer == preferred(oracle, output.prompt_token_ids, answer, llm.tokenizer.vocab_size)


def test_chat_answers_equal_transformers(pair: tuple[LLM, Any]) -> None:
    llm, oracle = pair
    talks = [[{"role": "user", "content": question}] for question in QUESTIONS]
    for output in llm.chat(talks, SamplingParams(temperature=0.0, max_tokens=64)):
        answer = output.outputs[0]
        assert answer.token_ids == preferred(
            oracle, output.prompt_token_ids, answer.token_ids, llm.tokenizer.vocab_size
        )
        assert answer.content
        assert "<|im_end|>" not in answer.text


def test_logits_equal_transformers(pair: tuple[LLM, Any]) -> None:
    llm, oracle = pair
    ids = llm.tokenize("Recursion: see 递归. def f(n): return f(n - 1) 😀")
    with torch.no_grad():
        want = oracle(torch.tensor([ids])).logits[0]
    got = llm.logits(ids, all_positions=True)
    # Logits of these models reach 30 and more; fp32 sums in another order differ in the sixth digit.
    assert (got - want).abs().max() <= 1e-5 * want.abs().max() + 1e-4


def test_bfloat16_keeps_the_most_probable_token_almost_everywhere(smollm2_gguf: Path) -> None:
    ids: list[int] = []
    rows = []
    for dtype in ("float32", "bfloat16"):
        with LLM(smollm2_gguf, dtype=dtype, max_model_len=512) as llm:
            ids = llm.tokenize("The quick brown fox jumps over the lazy dog. " * 8)
            rows.append(llm.logits(ids, all_positions=True).float().log_softmax(-1))
    agree = (rows[0].argmax(-1) == rows[1].argmax(-1)).float().mean()
    divergence = (rows[0].exp() * (rows[0] - rows[1])).sum(-1).mean()
    assert agree >= 0.97
    assert divergence <= 0.01


SONG = "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream."
EDIT = [{"role": "user", "content": f"Replace the word boat by ship, and give the whole text back:\n{SONG}"}]


@pytest.mark.skipif(native_ops() is None, reason="bits are equal in any company with native kernels only")
def test_guesses_and_company_change_nothing_of_a_real_answer(qwen_coder_gguf: Path) -> None:
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, logprobs=2),
        SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=60, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=60, repetition_penalty=1.1),
    ]
    answers = []
    for settings in ({"max_num_seqs": 1, "prefix_cache": False}, {"speculative": "prompt_lookup"}):
        with LLM(qwen_coder_gguf, max_model_len=512, **settings) as llm:
            outputs = llm.chat([EDIT] * 3, params)
            answers.append([(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs])
            stats = llm.stats
            accepted = sum(output.metrics.accepted_tokens for output in outputs)
    assert answers[0] == answers[1]
    assert stats.accepted_tokens == accepted > 5
    assert stats.prefix_hit_tokens > 0


def test_a_real_model_answers_in_json(qwen_coder_gguf: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "million_people": {"type": "integer"}},
        "required": ["city", "million_people"],
        "additionalProperties": False,
    }
    params = SamplingParams(temperature=0.0, max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema))
    question = [{"role": "user", "content": "What is the capital of France, and how many people live there?"}]
    with LLM(qwen_coder_gguf, max_model_len=512, speculative="prompt_lookup") as llm:
        answer = json.loads(llm.chat(question, params)[0].outputs[0].text)
    assert answer["city"] == "Paris"
    assert isinstance(answer["million_people"], int)
