"""Thinking: where a chat's answer stands between <think> and </think>, in token ids. Torch-free; knows no text.

Consistent with chat_output.py, which splits the text: thinking can only open at the very start of an answer, white
space aside, and once it is over it never opens again.

    "may"  -- <think> -->  "open"  -- </think> -->  "over"
      └------- any other token, not blank ----------^
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

__all__ = ["Thinking", "ThinkingTokens"]


@dataclass(frozen=True)
class ThinkingTokens:
    """A model's tokens for <think> and </think>, and those that are nothing but white space."""

    open_token_id: int
    close_token_id: int
    blank_token_ids: Container[int]


class Thinking:
    """The thinking of one answer; `push` every token of the answer, in order.

    `start`: the answer cannot think ("no"), may begin with <think> ("may"), or begins inside it ("open").
    `max_tokens` is the most tokens between <think> and </think>, or None for any number. Tokens of `blank_token_ids`
    leave open whether the answer begins with <think>; an answer that follows a grammar has none, for the grammar counts
    them already.
    """

    def __init__(
        self,
        start: Literal["no", "may", "open"],
        open_token_id: int,
        close_token_id: int,
        max_tokens: int | None = None,
        *,
        blank_token_ids: Container[int] = (),
    ) -> None:
        self._state: Literal["may", "open", "over"] = "over" if start == "no" else start
        self._open_token_id = open_token_id
        self._close_token_id = close_token_id
        self._max_tokens = max_tokens
        self._blank_token_ids = blank_token_ids
        self._num_tokens = 0  # between <think> and </think>

    @property
    def forced(self) -> int | None:
        """The token that must come next: </think> when the thinking's tokens are used up."""
        used_up = self._state == "open" and self._num_tokens == self._max_tokens
        return self._close_token_id if used_up else None

    @property
    def constrained(self) -> bool:
        """Whether a grammar applies to the next token: it binds the answer, not the thinking."""
        return self._state != "open"

    @property
    def may_open(self) -> int | None:
        """The token that may open the thinking as the next one, besides what a grammar allows."""
        return self._open_token_id if self._state == "may" else None

    def push(self, token_id: int) -> None:
        """The token that came next."""
        if self._state == "open":
            self._num_tokens += 1
            if token_id == self._close_token_id:
                self._state = "over"
        elif self._state == "may":
            if token_id == self._open_token_id:
                self._state = "open"
            elif token_id not in self._blank_token_ids:
                self._state = "over"
