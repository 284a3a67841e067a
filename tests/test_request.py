"""Prompts are checked before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qwill.errors import ContextLengthError, PromptError
from qwill.request import Request, as_prompts, as_token_ids, check_prompt, clamp_max_tokens
from qwill.sampling_params import SamplingParams

HUGE = 10**5000
"""Python refuses to write it out."""


@pytest.mark.parametrize("token_id", [-1, 100, 2**31, 2**63, True, 1.0, "1", None, pytest.param(HUGE, id="huge")])
def test_an_id_outside_the_vocabulary_is_refused_with_its_place(token_id: Any) -> None:
    with pytest.raises(PromptError, match=r"position 2") as caught:
        check_prompt([1, 99, token_id], vocab_size=100, max_model_len=10)
    assert "0 … 99" in str(caught.value)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptError, match="empty"):
        check_prompt([], vocab_size=100, max_model_len=10)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    check_prompt([1] * 9, vocab_size=100, max_model_len=10)
    with pytest.raises(ContextLengthError, match=r"10 tokens.*holds 10"):
        check_prompt([1] * 10, vocab_size=100, max_model_len=10)


@pytest.mark.parametrize(("asked", "given"), [(None, 3), (2, 2), (3, 3), (10**6, 3)])
def test_the_answer_ends_at_the_context(asked: int | None, given: int) -> None:
    assert clamp_max_tokens(SamplingParams(max_tokens=asked), 7, 10) == given


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("count", range(4))
def test_tokens_run_from_the_prompt_into_the_answer(start: int, count: int) -> None:
    request = Request("r", [0, 1, 2, 3], SamplingParams(), max_tokens=9, output_token_ids=[4, 5, 6])
    assert request.tokens(start, count) == list(range(7))[start : start + count]


ODD_ARRAYS = [np.array([1.5, 2.0]), np.array([True]), np.zeros((1, 2), int), np.array([None]), torch.tensor([1.5])]


@pytest.mark.parametrize("prompt", ODD_ARRAYS, ids=repr)
def test_arrays_of_anything_but_whole_numbers_are_refused(prompt: Any) -> None:
    with pytest.raises(PromptError, match="position 0"):
        check_prompt(as_token_ids(prompt), vocab_size=100, max_model_len=10)


@pytest.mark.parametrize("number", [np.array(5), torch.tensor(5), np.int64(5)], ids=repr)
def test_a_single_number_of_an_array_is_no_prompt(number: Any) -> None:
    with pytest.raises(PromptError, match="a prompt is text or a list"):
        as_prompts(number)
