"""What the last tokens led to earlier is guessed to come again."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.prompt_lookup import MOST_INDEXED, SIZES, PromptLookup
from qwill.request import Request
from qwill.sampling_params import SamplingParams


def request(*prompt: int) -> Request:
    return Request("r", list(prompt), SamplingParams(), 10_000)


def searched(tokens: list[int], count: int) -> list[int]:
    """The oracle: look through the whole text, from its end, for the longest piece first."""
    for size in SIZES:
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                text = list(tokens)
                for position in range(start + size, start + size + count):
                    text.append(text[position])
                return text[len(tokens) :]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 4)), st.integers(0, 9))
def test_guesses_equal_a_search_through_the_whole_text(text: list[int], pieces: list[int], count: int) -> None:
    lookup, one = PromptLookup(), request(text[0])
    rest = text[1:]
    for piece in [*pieces, len(rest)]:  # as many new tokens at a time as a step may bring
        assert lookup.propose([one], [count]) == [searched(text[: one.num_tokens], count)]
        one.output_token_ids += rest[:piece]
        rest = rest[piece:]
    assert lookup.propose([one], [count]) == [searched(text[: one.num_tokens], count)]


def test_a_circle_is_guessed_beyond_the_end_of_what_is_known() -> None:
    assert PromptLookup().propose([request(9, 1, 2, 1, 2)], [7]) == [[1, 2, 1, 2, 1, 2, 1]]


def test_requests_do_not_see_each_other() -> None:
    first, second = request(1, 2, 3, 1, 2), request(1, 2)
    assert PromptLookup().propose([first, second], [1, 1]) == [[3], []]


def test_asking_again_without_new_tokens_gives_the_same() -> None:
    lookup, one = PromptLookup(), request(1, 2, 3, 1, 2)
    assert lookup.propose([one], [2]) == lookup.propose([one], [2]) == [[3, 1]]


def test_a_long_prompt_is_taken_in_over_several_steps() -> None:
    tokens = random.Random(0).choices(range(1000), k=3 * MOST_INDEXED)
    lookup, one = PromptLookup(), request(*tokens, *tokens[-100:-90])
    answers = [lookup.propose([one], [5]) for _ in range(4)]
    assert answers[0] != [tokens[-90:-85]]
    assert answers[-1] == [tokens[-90:-85]]


@pytest.mark.parametrize("times", [1, 2])
def test_a_forgotten_request_leaves_nothing_behind(times: int) -> None:
    lookup, one = PromptLookup(), request(1, 2, 3, 1, 2)
    lookup.propose([one], [2])
    for _ in range(times):
        lookup.forget(one)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
