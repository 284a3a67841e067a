"""Sampler against transformers' logits processors, float64 formulas and statistics."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qwill.drawing import NUCLEUS_GUESS
from qwill.errors import ModelError, SettingError
from qwill.sampler import Sampler, distribution
from qwill.sampling_params import SamplingParams

LOGITS = torch.tensor([0.5, 2.0, -1.0, 2.0, 0.0, 1.0])


def sampler(prompt: tuple[int, ...] = (0,), vocab_size: int = 6, eos: frozenset[int] = frozenset(), index: int = 0,
            **params: Any) -> Sampler:  # fmt: skip
    return Sampler(SamplingParams(**params), prompt, vocab_size, eos_token_ids=eos, index=index)


def draws(how_many: int, logits: torch.Tensor = LOGITS, **options: Any) -> list[int]:
    one = sampler(vocab_size=len(logits), **options)
    return [one.sample(logits).token_id for _ in range(how_many)]


# --- equal to transformers -------------------------------------------------------------------------------------------


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities (V,) in float64 by transformers' warpers, in the order in which generate() applies them."""
    scores, none = logits.double()[None], torch.zeros(1, 0, dtype=torch.int64)
    scores = TemperatureLogitsWarper(float(params.temperature))(none, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(none, scores)
    if params.top_p < 1.0:
        scores = TopPLogitsWarper(float(params.top_p))(none, scores)
    if params.min_p > 0.0:
        scores = MinPLogitsWarper(params.min_p)(none, scores)
    return scores.softmax(-1)[0]


def on_an_edge(logits: torch.Tensor, params: SamplingParams) -> bool:
    """Whether rounding alone could decide if some token passes top_p or min_p."""
    before_top_p = warped(logits, SamplingParams(temperature=params.temperature, top_k=params.top_k))
    sums = before_top_p[logits.sort(stable=True).indices].cumsum(0)
    shares = before_top_p / before_top_p.max()
    near_top_p = params.top_p < 1.0 and bool(((sums - (1.0 - params.top_p)).abs() < 1e-5).any())
    return near_top_p or bool((params.min_p > 0.0) & ((shares - params.min_p).abs() < 1e-5).any())


STABLE_SORT = 16
"""In longer rows, torch.sort leaves open which of several equal tokens transformers' top_p drops."""
LEVELS = st.sampled_from([-math.inf, -3.0, -1.0, 0.0, 0.25, 0.5, 2.0])  # few values: many ties
VALUES = st.floats(-30, 30, width=32)
SOME_LOGITS = st.lists(st.one_of(LEVELS, VALUES), min_size=1, max_size=40).filter(lambda row: max(row) > -math.inf)
FILTERS = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 50),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SOME_LOGITS, FILTERS)
@example([1.0, 1.0, 1.0, 1.0], SamplingParams(top_p=0.5))
@example([1.0, 1.0, 1.0, 1.0], SamplingParams(top_k=2))
@example([2.0, 0.0, 0.0, 0.0, -1.0], SamplingParams(top_k=2, top_p=0.9, min_p=0.01))
@example([0.0], SamplingParams(temperature=5.0, top_k=1, top_p=0.01, min_p=1.0))
def test_distribution_equals_transformers(row: list[float], params: SamplingParams) -> None:
    logits = torch.tensor(row)
    halves = len(set(row)) == 1 and math.log2(len(row)).is_integer()  # exact in binary: no rounding to excuse
    assume(halves or not on_an_edge(logits, params))
    ours, theirs = distribution(logits, params).double(), warped(logits, params)
    if len(row) > STABLE_SORT:
        ours, theirs = ours.sort().values, theirs.sort().values
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99])
def test_top_p_over_a_large_vocabulary_equals_transformers(scale: float, top_p: float) -> None:
    # A small scale spreads the nucleus past the first guess, a large one keeps it inside.
    logits = torch.randn(20 * NUCLEUS_GUESS, generator=torch.Generator().manual_seed(1)) * scale
    params = SamplingParams(top_p=top_p)
    ours, theirs = distribution(logits, params).double(), warped(logits, params)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert int((ours > 0).sum()) == int((theirs > 0).sum())


def test_equal_tokens_beyond_the_first_guess_are_counted_exactly() -> None:
    logits = torch.zeros(4 * NUCLEUS_GUESS)
    logits[7] = 12.0
    params = SamplingParams(top_p=0.99)
    ours, theirs = distribution(logits, params).double(), warped(logits, params)
    torch.testing.assert_close(ours.sort().values, theirs.sort().values, atol=1e-6, rtol=0)
    kept = ours.nonzero().flatten().tolist()
    assert kept == [7, *range(kept[1], len(logits))]  # of equal tokens, the lower ids go first


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(VALUES, min_size=2, max_size=30),
    st.floats(0.01, 100.0),
    st.lists(st.integers(0, 29), min_size=1, max_size=40),
    st.data(),
)
def test_repetition_penalty_equals_transformers(
    row: list[float], penalty: float, history: list[int], data: st.DataObject
) -> None:
    logits, history = torch.tensor(row), [i % len(row) for i in history]
    split = data.draw(st.integers(0, len(history)))
    one = sampler(tuple(history[:split]), len(row), repetition_penalty=penalty, logprobs=20, temperature=0.7)
    feed(one, history[split:], len(row))
    scores = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits[None].clone())
    check_reported(one, logits, scores[0].double())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(VALUES, min_size=2, max_size=30),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.lists(st.integers(0, 29), max_size=10),
    st.lists(st.integers(0, 29), max_size=100),
)
def test_presence_and_frequency_penalties_look_at_the_answer_only(
    row: list[float], presence: float, frequency: float, prompt: list[int], answer: list[int]
) -> None:
    logits, answer = torch.tensor(row), [i % len(row) for i in answer]
    one = sampler(tuple(i % len(row) for i in prompt), len(row), presence_penalty=presence,
                  frequency_penalty=frequency, logprobs=20)  # fmt: skip
    feed(one, answer, len(row))
    counts = np.bincount(np.array(answer, dtype=np.int64), minlength=len(row)).astype(np.float64)
    expected = np.array(row, dtype=np.float64) - presence * (counts > 0) - frequency * counts
    check_reported(one, logits, torch.from_numpy(expected))


def feed(one: Sampler, token_ids: list[int], vocab_size: int) -> None:
    """Make the sampler choose given tokens, by logits that no penalty can turn round."""
    for token_id in token_ids:
        certain = torch.full((vocab_size,), -1e6)
        certain[token_id] = 1e6
        assert one.sample(certain).token_id == token_id


def check_reported(one: Sampler, logits: torch.Tensor, expected_scores: torch.Tensor) -> None:
    """The log probabilities that `one` reports for `logits` are those of the expected scores (V,) float64."""
    expected = expected_scores.log_softmax(0)
    for token_id, logprob, _ in one.sample(logits).top:
        assert logprob == pytest.approx(float(expected[token_id]), abs=2e-6 * (1 + float(expected_scores.abs().max())))


# --- greedy ----------------------------------------------------------------------------------------------------------


@given(st.lists(LEVELS, min_size=1, max_size=80).filter(lambda row: max(row) > -math.inf))
@settings(deadline=None)
def test_greedy_takes_the_lowest_id_of_equal_logits(row: list[float]) -> None:
    assert draws(1, torch.tensor(row), temperature=0) == [row.index(max(row))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_greedy_ties_in_a_full_vocabulary_and_every_dtype(dtype: torch.dtype) -> None:
    logits = torch.zeros(151_936, dtype=dtype)
    logits[[151_000, 90_001, 33_333]] = 5.0
    assert draws(2, logits, temperature=0) == [33_333, 33_333]


@pytest.mark.parametrize(
    "others", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}, {"seed": 3}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}]
)
def test_temperature_zero_ignores_the_filters(others: dict[str, Any]) -> None:
    assert draws(3, temperature=0, **others) == [1, 1, 1]
    expected = torch.zeros(6)
    expected[1] = 1.0
    assert torch.equal(distribution(LOGITS, SamplingParams(temperature=0, **others)), expected)


def test_greedy_obeys_penalties_and_bias() -> None:
    assert draws(3, temperature=0, frequency_penalty=0.8) == [1, 3, 1]
    assert draws(1, temperature=0, logit_bias={2: 100.0}) == [2]
    assert draws(1, temperature=0, repetition_penalty=1.5, prompt=(1,)) == [3]


# --- what may be drawn -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_ids_past_the_vocabulary_are_never_sampled(temperature: float) -> None:
    logits = torch.cat([LOGITS, torch.full((4,), 1e4)])
    one = sampler(temperature=temperature, seed=1, logprobs=20, prompt=(9,), repetition_penalty=1.1)
    for _ in range(200):
        sampled = one.sample(logits)
        assert sampled.token_id < 6
        assert all(token_id < 6 for token_id, _, _ in sampled.top)


def test_stop_tokens_wait_for_min_tokens() -> None:
    logits = torch.tensor([0.0, 9.0, 8.0, 1.0])
    assert draws(4, logits, temperature=0, eos=frozenset({1, 99}), stop_token_ids=[2], min_tokens=2) == [3, 3, 1, 1]
    with_eos = draws(3, logits, temperature=0, eos=frozenset({1}), stop_token_ids=[2], min_tokens=3, ignore_eos=True)
    assert with_eos == [1, 1, 1]


def test_stop_tokens_that_leave_nothing_to_choose_are_an_error() -> None:
    with pytest.raises(ModelError, match="not finite"):
        draws(1, torch.zeros(2), eos=frozenset({0, 1}), min_tokens=1)


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_ids_outside_the_vocabulary_are_refused(field: str) -> None:
    sampler(**{field: {5: 1.0}} if field == "logit_bias" else {field: [5]})
    with pytest.raises(SettingError, match=rf"{field}: token id 6 .*\n.*0 … 5"):
        sampler(**{field: {6: 1.0}} if field == "logit_bias" else {field: [6]})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.nan])
def test_non_finite_logits_are_an_error_and_never_token_zero(bad: float, temperature: float) -> None:
    for position in range(6):
        logits = LOGITS.clone()
        logits[position] = bad
        with pytest.raises(ModelError, match="not finite"):
            draws(1, logits, temperature=temperature, min_tokens=1, eos=frozenset({position}))
        with pytest.raises(ModelError, match="not finite"):
            distribution(logits, SamplingParams(temperature=temperature))


def test_logits_that_rule_out_every_token_are_an_error() -> None:
    with pytest.raises(ModelError, match="not finite"):
        draws(1, torch.full((6,), -math.inf))


def test_logits_with_some_tokens_ruled_out_are_fine() -> None:
    logits = torch.full((6,), -math.inf)
    logits[4] = -3e38
    assert draws(5, logits, temperature=100.0) == [4] * 5
    assert draws(5, logits, temperature=5e-324) == [4] * 5


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-38, 1e-10])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    expected = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0, 0.0])  # two logits are equal
    torch.testing.assert_close(distribution(LOGITS * 1e3, SamplingParams(temperature=temperature)), expected)


def test_too_few_logits_are_an_error() -> None:
    for shape in [(5,), (1, 6)]:
        with pytest.raises(ModelError, match="shape"):
            sampler().sample(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_given_logits_are_not_changed(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    before = logits.clone()
    draws(3, logits, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.3, presence_penalty=1, frequency_penalty=1,
          logit_bias={1: 3.0}, min_tokens=2, eos=frozenset({2}), logprobs=3)  # fmt: skip
    assert torch.equal(logits, before)


# --- chance ----------------------------------------------------------------------------------------------------------


def chi_square(counts: Counter[int], probabilities: torch.Tensor) -> tuple[float, int]:
    total, kept = sum(counts.values()), [i for i, p in enumerate(probabilities.tolist()) if p > 0]
    assert set(counts) <= set(kept)
    expected = {i: total * float(probabilities[i]) for i in kept}
    return sum((counts[i] - expected[i]) ** 2 / expected[i] for i in kept), len(kept) - 1


def check_frequencies(counts: Counter[int], probabilities: torch.Tensor) -> None:
    statistic, freedom = chi_square(counts, probabilities)
    # Wilson and Hilferty's normal approximation; 4.5 standard deviations, and the seeds are fixed.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.5


@pytest.mark.parametrize("filters", [{}, {"temperature": 0.5, "top_k": 4}, {"top_p": 0.8}, {"min_p": 0.3}], ids=str)
def test_drawn_frequencies_follow_the_distribution(filters: dict[str, Any]) -> None:
    expected = warped(LOGITS, SamplingParams(**filters))
    check_frequencies(Counter(draws(4000, seed=11, **filters)), expected)


def test_draws_from_a_large_vocabulary_follow_the_distribution_and_never_take_what_cannot_be() -> None:
    logits = torch.full((5000,), -math.inf)
    logits[[0, 511, 512, 513, 2600, 4607, 4999]] = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 1.5, 0.2])
    one = sampler(vocab_size=5000, seed=4)
    check_frequencies(Counter(one.sample(logits).token_id for _ in range(3000)), logits.double().softmax(0))


def test_first_draws_of_neighbouring_seeds_follow_the_distribution() -> None:
    counts = Counter(draws(1, seed=seed)[0] for seed in range(3000))
    check_frequencies(counts, warped(LOGITS, SamplingParams()))


def test_same_seed_gives_the_same_ids() -> None:
    assert draws(50, seed=7) == draws(50, seed=7)
    assert draws(50, seed=7) != draws(50, seed=8)
    assert draws(50, seed=7, index=1) != draws(50, seed=7)
    assert len(draws(2, seed=2**63 - 1, index=15)) == 2


def test_without_a_seed_requests_differ() -> None:
    assert draws(50) != draws(50)


def test_a_seed_does_not_depend_on_other_requests() -> None:
    alone = draws(20, seed=7)
    torch.manual_seed(0)
    mates = [sampler(seed=seed) for seed in (7, 1, None, 3, 7)]
    together = [[mate.sample(LOGITS).token_id for mate in mates] for _ in range(20)]
    assert [row[0] for row in together] == alone
    assert [row[4] for row in together] == alone


def test_sampling_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draws(5)
    assert torch.equal(torch.get_rng_state(), before)


# --- log probabilities -----------------------------------------------------------------------------------------------


def test_logprobs_are_taken_before_temperature_and_filters() -> None:
    sampled = sampler(temperature=0.1, top_k=1, logprobs=3, logit_bias={2: 1.0}).sample(LOGITS)
    edited = LOGITS.double() + torch.tensor([0, 0, 1.0, 0, 0, 0])
    expected = edited.log_softmax(0)
    assert [(i, rank) for i, _, rank in sampled.top] == [(1, 1), (3, 2), (5, 3)]
    for token_id, logprob, _ in sampled.top:
        assert logprob == pytest.approx(float(expected[token_id]), abs=1e-6)


def test_the_chosen_token_is_always_among_the_top() -> None:
    one = sampler(seed=3, temperature=5.0, logprobs=1)
    order = LOGITS.sort(descending=True, stable=True).indices.tolist()
    for _ in range(50):
        sampled = one.sample(LOGITS)
        reported = {token_id: (logprob, rank) for token_id, logprob, rank in sampled.top}
        assert reported[sampled.token_id] == (sampled.logprob, order.index(sampled.token_id) + 1)
        assert len(reported) == (1 if sampled.token_id == 1 else 2)


def test_logprobs_zero_reports_the_chosen_token_only() -> None:
    sampled = sampler(temperature=0, logprobs=0).sample(LOGITS)
    assert sampled.top == [(1, sampled.logprob, 1)]
    assert sampler(temperature=0).sample(LOGITS) == (1, None, [])


# --- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [{"temperature": 0}, {"top_k": 20, "top_p": 0.95, "temperature": 0.6}], ids=str)
def test_a_full_vocabulary_costs_under_two_milliseconds(filters: dict[str, Any]) -> None:
    logits = torch.randn(151_936, generator=torch.Generator().manual_seed(0)) * 3
    one = sampler(vocab_size=151_669, **filters)
    fastest = math.inf
    for _ in range(30):  # the fastest of many: other work on the machine cannot fail this
        start = time.perf_counter()
        one.sample(logits)
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 2e-3
