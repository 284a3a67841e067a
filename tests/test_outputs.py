"""Speeds are tokens over the time they took, and no division by zero where nothing was measured."""

from __future__ import annotations

import pytest

from qwill.outputs import CompletionOutput, Metrics


def test_decode_speed_does_not_count_the_first_token() -> None:
    metrics = Metrics(prompt_tokens=30, generated_tokens=11, time_to_first_token=0.5, decode_seconds=2.0)
    assert metrics.decode_tokens_per_second == pytest.approx(5.0)
    assert metrics.prefill_tokens_per_second == pytest.approx(60.0)


def test_prefill_speed_does_not_count_what_came_from_the_cache() -> None:
    metrics = Metrics(prompt_tokens=1000, cached_tokens=990, time_to_first_token=0.5)
    assert metrics.prefill_tokens_per_second == pytest.approx(20.0)


@pytest.mark.parametrize("generated", [0, 1])
def test_no_speed_is_claimed_where_no_time_passed(generated: int) -> None:
    metrics = Metrics(prompt_tokens=30, generated_tokens=generated)
    assert (metrics.decode_tokens_per_second, metrics.prefill_tokens_per_second) == (0.0, 0.0)


def test_two_answers_share_no_lists() -> None:
    first, second = CompletionOutput(0), CompletionOutput(1)
    first.token_ids.append(1)
    first.tool_calls.append({})
    assert (second.token_ids, second.tool_calls) == ([], [])
