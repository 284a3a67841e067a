"""Sampler with a grammar and with thinking: what is asked for is what comes, whatever the logits and settings say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill.grammar import Matcher, Vocabulary, compile_grammar
from qwill.sampler import Sampled, Sampler
from qwill.sampling_params import SamplingParams, StructuredOutputsParams
from qwill.thinking import Thinking
from qwill.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"ab": {"type": "boolean"}, "n": {"type": "integer", "maximum": 999, "minimum": -99}},
    "required": ["ab", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tiny(tiny_tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tiny_tokenizer)


class Answer:
    """One answer out of random logits: its sampler, and what came."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, params: SamplingParams, **how: Any) -> None:
        structure = params.structured_outputs
        self.grammar: Matcher | None = compile_grammar(structure, vocabulary).matcher() if structure else None
        self.tokenizer, self.vocab_size = tokenizer, vocabulary.vocab_size
        self.ends = frozenset(vocabulary.eos_token_ids)
        self.open, self.close = (tokenizer.special_tokens[text] for text in ("<think>", "</think>"))
        start = how.pop("start", None)
        thinking = None if start is None else Thinking(start, self.open, self.close, params.max_thinking_tokens)
        self.sampler = Sampler(
            params, [1, 2], self.vocab_size, eos_token_ids=self.ends, grammar=self.grammar, thinking=thinking
        )
        self.logits = np.random.default_rng(how.pop("logits_seed", 0))
        self.sampled: list[Sampled] = []
        self.stopped = False

    def go_on(self, most: int, change: Callable[[torch.Tensor], None] = lambda row: None) -> Answer:
        """Up to `most` more tokens; `change` edits each row of logits first."""
        for _ in range(most):
            row = torch.from_numpy(self.logits.normal(0, 3, self.vocab_size + 8).astype(np.float32))
            change(row)
            self.sampled.append(self.sampler.sample(row))
            self.stopped = self.sampler.finished or self.token_ids[-1] in self.ends
            if self.stopped:
                break
        return self

    @property
    def token_ids(self) -> list[int]:
        return [one.token_id for one in self.sampled]

    def text(self, start: int = 0) -> str:
        ids = [token_id for token_id in self.token_ids[start:] if token_id not in self.ends]
        return self.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def answer(tiny: Vocabulary, tiny_tokenizer: Tokenizer) -> Callable[..., Answer]:
    """answer(start=, logits_seed=, **sampling parameters)"""

    def make(start: str | None = None, logits_seed: int = 0, **params: Any) -> Answer:
        what = {name: params.pop(name) for name in ("json", "regex", "grammar", "choice") if name in params}
        structure = StructuredOutputsParams(**what) if what else None
        made = SamplingParams(structured_outputs=structure, **params)
        return Answer(tiny, tiny_tokenizer, made, start=start, logits_seed=logits_seed)

    return make


def is_record(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"ab", "n"} and isinstance(value["ab"], bool) and -99 <= int(value["n"]) <= 999


WORDS = "(yes|no)( [a-c]{1,3}){1,2}"
CHOICES = ["ab", "abab", "true"]


def is_nested(text: str) -> bool:
    depth = text.count("(")
    return text == "(" * depth + "ab" + ")" * depth


KINDS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": SCHEMA}, is_record),
    "regex": ({"regex": WORDS}, lambda text: re.fullmatch(WORDS, text) is not None),
    "grammar": ({"grammar": 'start: "(" start ")" | "ab"'}, is_nested),
    "choice": ({"choice": CHOICES}, CHOICES.__contains__),
}
HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 3.0]),
        "top_k": st.sampled_from([1, 5, 20]),
        "top_p": st.sampled_from([0.1, 0.9]),
        "min_p": st.sampled_from([0.5]),
        "repetition_penalty": st.sampled_from([0.5, 1.8]),
        "presence_penalty": st.sampled_from([-2.0, 2.0]),
        "frequency_penalty": st.sampled_from([-2.0, 2.0]),
        "logit_bias": st.sampled_from([dict.fromkeys(range(0, 250, 3), -100.0), {261: 100.0, 262: 100.0, 5: 100.0}]),
        "min_tokens": st.sampled_from([3, 50]),
        "stop_token_ids": st.sampled_from([[], [7, 90]]),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([0, 5, 20]),
    },
)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(others=HOSTILE, seed=st.integers(0, 999))
def test_an_answer_that_ends_is_what_was_asked_for_whatever_else_is_set(
    kind: str, others: dict[str, Any], seed: int, answer: Callable[..., Answer]
) -> None:
    what, is_right = KINDS[kind]
    one = answer(logits_seed=seed, seed=seed, **what, **others).go_on(60)
    if one.stopped:
        assert is_right(one.text()), one.text()
    for sampled in one.sampled:
        assert all(math.isfinite(logprob) for _, logprob, _ in sampled.top)


# --- masks and chance ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [{"temperature": 0}, {}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}], ids=str)
def test_a_grammar_that_allows_everything_changes_no_token(
    filters: dict[str, Any], answer: Callable[..., Answer]
) -> None:
    def letters_only(row: torch.Tensor) -> None:
        row[: ord("A")] = -math.inf
        row[ord("Z") :] = -math.inf

    free = answer(seed=5, **filters).go_on(40, letters_only)
    bound = answer(seed=5, regex=r"[\s\S]*", **filters).go_on(40, letters_only)
    assert free.token_ids == bound.token_ids
    assert len(set(free.token_ids)) > 5


def test_log_probabilities_are_those_of_the_allowed_tokens_alone(
    answer: Callable[..., Answer], tiny_tokenizer: Tokenizer
) -> None:
    one = answer(regex="[abc]x", logprobs=20, temperature=0).go_on(1).sampled[0]
    allowed = [tiny_tokenizer.encode(letter)[0] for letter in "abc"]
    row = np.random.default_rng(0).normal(0, 3, 400)[allowed].astype(np.float32).astype(np.float64)
    expected = dict(zip(allowed, row - np.log(np.exp(row).sum()), strict=True))
    assert [rank for _, _, rank in one.top] == [1, 2, 3]
    assert {token_id: pytest.approx(logprob, abs=1e-6) for token_id, logprob, _ in one.top} == expected


def test_the_grammar_wins_over_min_tokens_where_it_allows_nothing_but_an_end(
    answer: Callable[..., Answer], tiny_tokenizer: Tokenizer
) -> None:
    letter = tiny_tokenizer.encode("x")[0]
    only = answer(choice=["x"], min_tokens=9, stop_token_ids=[letter], temperature=0).go_on(5)
    assert (only.token_ids, only.stopped) == ([letter], True)
    # An end that may come is held back as long as something else may.
    longer = answer(regex="x{1,6}", min_tokens=4, logit_bias=dict.fromkeys(only.ends, 100.0), temperature=0).go_on(9)
    assert longer.text() == "xxxx"
    assert longer.token_ids[-1] in longer.ends


def test_the_answer_ends_with_its_last_token_when_nothing_may_follow(answer: Callable[..., Answer]) -> None:
    one = answer(json=SCHEMA, seed=1).go_on(80)
    assert one.stopped
    assert one.text().endswith("}")
    assert one.token_ids[-1] not in one.ends


# --- thinking --------------------------------------------------------------------------------------------------------

FIGHTING = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0, "min_tokens": 500}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("start", ["open", "may"])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_exactly_the_budget_is_thought_and_then_the_answer_follows_its_grammar(
    budget: int, start: str, temperature: float, answer: Callable[..., Answer]
) -> None:
    one = answer(start, json=SCHEMA, max_thinking_tokens=budget, temperature=temperature, seed=3)
    first = 1 if start == "may" else 0

    def think(row: torch.Tensor) -> None:
        row[one.close] = -math.inf  # never by itself
        row[list(one.ends)] = 50.0  # and rather nothing at all
        if first and not one.sampled:
            row[one.open] = 60.0

    one.go_on(first + budget + 80, think)
    assert one.token_ids.index(one.close) == first + budget
    assert one.stopped
    assert is_record(one.text(first + budget + 1))


def test_the_end_of_thinking_is_forced_against_bias_penalties_and_min_tokens(answer: Callable[..., Answer]) -> None:
    close = answer("open").close
    for temperature in (0.0, 1.0):
        bias = {close: -100.0}
        one = answer("open", max_thinking_tokens=3, logit_bias=bias, stop_token_ids=[close], logprobs=5, seed=0,
                     temperature=temperature, **FIGHTING).go_on(4)  # fmt: skip
        assert one.token_ids.index(close) == 3
        assert one.sampled[3] == (close, 0.0, [(close, 0.0, 1)])


def test_a_forced_token_takes_a_random_number_like_any_other(answer: Callable[..., Answer]) -> None:
    forced = answer("open", max_thinking_tokens=3, seed=9, top_k=20)
    close = forced.close
    plain = answer(seed=9, top_k=20)

    def no_ends(row: torch.Tensor) -> None:
        row[[*forced.ends, forced.close]] = -math.inf

    def only_close(row: torch.Tensor) -> None:
        row[:] = -math.inf
        row[close] = 0.0

    forced.go_on(20, no_ends)
    plain.go_on(3, no_ends).go_on(1, only_close).go_on(16, no_ends)
    assert forced.token_ids == plain.token_ids


def test_an_answer_may_begin_with_thinking_or_with_what_its_grammar_allows(answer: Callable[..., Answer]) -> None:
    firsts = {answer("may", choice=["x"], seed=seed, temperature=100.0).go_on(1).text() for seed in range(30)}
    assert firsts == {"<think>", "x"}
    assert {answer("no", choice=["x"], seed=seed).go_on(1).text() for seed in range(9)} == {"x"}


def test_thinking_cannot_end_the_answer_before_what_was_asked_for(answer: Callable[..., Answer]) -> None:
    one = answer("open", choice=["true"], temperature=0)

    def rather_end(row: torch.Tensor) -> None:
        row[list(one.ends)] = 99.0
        row[one.close] = 90.0 if len(one.sampled) == 6 else -90.0

    one.go_on(30, rather_end)
    assert one.token_ids.index(one.close) == 6
    assert (one.text(7), one.stopped) == ("true", True)
    assert answer("open", temperature=0).go_on(9, rather_end).stopped  # without a grammar it is the model's choice


def test_a_grammar_that_fails_fails_its_own_answer_only(answer: Callable[..., Answer]) -> None:
    good, bad = answer(choice=["true"]), answer(choice=["true"])
    assert bad.grammar is not None
    bad.sampled.append(bad.sampler.sample(torch.zeros(bad.vocab_size)))
    with pytest.raises(Exception, match="structured_outputs"):
        bad.grammar.accept(7)
    with pytest.raises(Exception, match="structured_outputs"):
        bad.go_on(1)
    assert good.go_on(9).text() == "true"
