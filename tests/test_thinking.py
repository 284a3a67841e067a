"""Thinking: exact budgets, and the same split of an answer as the parser of its text makes."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.chat_output import OutputParser
from qwill.thinking import Thinking

OPEN, CLOSE, BLANK, A, B = range(5)
TEXT = {OPEN: "<think>", CLOSE: "</think>", BLANK: " ", A: "a", B: "b"}
Start = Literal["no", "may", "open"]


def kinds(start: Start, token_ids: list[int]) -> list[bool]:
    """For each token and for the one after the last: whether a grammar would apply to it."""
    thinking = Thinking(start, OPEN, CLOSE, blank_token_ids={BLANK})
    found = [thinking.constrained]
    for token_id in token_ids:
        thinking.push(token_id)
        found.append(thinking.constrained)
    return found


@given(start=st.sampled_from(["may", "open"]), token_ids=st.lists(st.sampled_from(list(TEXT)), max_size=12))
def test_the_thinking_is_what_the_parser_of_the_text_calls_thinking(start: Start, token_ids: list[int]) -> None:
    parser = OutputParser(starts_in_thinking=start == "open")
    events = [event for token_id in token_ids for event in parser.push(TEXT[token_id])] + parser.finish()
    thoughts = "".join(text for kind, text in events if kind == "thinking")
    in_thinking = [not constrained for constrained in kinds(start, token_ids)[:-1]]
    ours = [TEXT[i] for i, inside in zip(token_ids, in_thinking, strict=True) if inside and i != CLOSE]
    assert thoughts == "".join(ours)


@pytest.mark.parametrize("budget", [0, 1, 2, 7])
@pytest.mark.parametrize("start", ["may", "open"])
def test_the_end_is_forced_after_exactly_as_many_tokens_as_allowed(start: Start, budget: int) -> None:
    thinking = Thinking(start, OPEN, CLOSE, budget)
    if start == "may":
        assert thinking.forced is None
        thinking.push(OPEN)
    for token_id in [A, OPEN, B, A, BLANK, A, B][:budget]:
        assert thinking.forced is None
        thinking.push(token_id)
    assert thinking.forced == CLOSE
    thinking.push(CLOSE)
    for token_id in (A, OPEN, B, CLOSE, A):
        assert thinking.forced is None
        assert thinking.constrained
        thinking.push(token_id)


@pytest.mark.parametrize("budget", [1, 2**31 - 1, None])
def test_a_thinking_that_ends_by_itself_is_not_forced(budget: int | None) -> None:
    thinking = Thinking("open", OPEN, CLOSE, budget)
    thinking.push(CLOSE)
    assert thinking.forced is None
    assert thinking.constrained


def test_an_answer_that_does_not_begin_with_thinking_never_has_any() -> None:
    for start in ("no", "may"):
        thinking = Thinking(start, OPEN, CLOSE, 0)
        thinking.push(A)
        thinking.push(OPEN)
        assert thinking.constrained
        assert thinking.forced is None
        assert thinking.may_open is None


def test_only_an_answer_that_may_think_may_open_it_and_only_at_its_start() -> None:
    assert Thinking("no", OPEN, CLOSE).may_open is None
    assert Thinking("open", OPEN, CLOSE).may_open is None
    thinking = Thinking("may", OPEN, CLOSE, blank_token_ids={BLANK})
    assert thinking.may_open == OPEN
    thinking.push(BLANK)
    assert thinking.may_open == OPEN
    thinking.push(OPEN)
    assert thinking.may_open is None
    assert not thinking.constrained
