"""Prompts of exact lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwill.bench.prompts import make_prompts
from qwill.tokenizer import Tokenizer


@pytest.mark.parametrize(("length", "count"), [(1, 4), (32, 4), (512, 4), (5000, 3), (40, 101)])
def test_prompts_have_the_length_and_differ(tiny_model: Path, length: int, count: int) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    prompts = make_prompts(tokenizer, length, count)
    assert [len(prompt) for prompt in prompts] == [length] * count
    assert all(0 <= token_id < tokenizer.vocab_size for prompt in prompts for token_id in prompt)
    if length >= 32:
        assert len({tuple(prompt) for prompt in prompts}) == count


def test_prompts_are_the_same_every_time(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    assert make_prompts(tokenizer, 64, 4) == make_prompts(tokenizer, 64, 4)


def test_shorter_prompts_are_beginnings_of_longer_ones(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    short, long = make_prompts(tokenizer, 10, 3), make_prompts(tokenizer, 3000, 3)
    assert [prompt[:10] for prompt in long] == short
