"""PromptLookup: guesses what comes next by looking up when the last tokens occurred before. Torch-free, knows no model.

Prompt lookup decoding (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding; vLLM's "ngram"): an answer
that edits, quotes or continues its prompt repeats long pieces of it, and so does one that goes in circles.
"""

from __future__ import annotations

from collections.abc import Sequence

from qwill.request import Request

__all__ = ["PromptLookup"]

SIZES = (4, 3, 2)
"""How many last tokens are looked up: the longest piece that occurred before counts."""

MOST_INDEXED = 2048
"""Tokens that enter the index in one step, which takes about a millisecond: a long prompt is taken in over several."""


class PromptLookup:
    """Proposes what followed the latest earlier occurrence of a request's last tokens, in its own prompt and answer.

    A new token costs one dictionary entry for each size, and a proposal three look-ups at most, however long the
    context is.
    """

    def __init__(self) -> None:
        self._indexes: dict[Request, _Index] = {}

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        """For each request at most `most[i]` token ids after its last known one; none where nothing was found."""
        return [self._propose(request, count) for request, count in zip(requests, most, strict=True)]

    def forget(self, request: Request) -> None:
        """Free what is kept of a request. Harmless when nothing is."""
        self._indexes.pop(request, None)

    def _propose(self, request: Request, count: int) -> list[int]:
        if request not in self._indexes:
            self._indexes[request] = _Index()
        index = self._indexes[request]
        index.extend(request)
        return index.following(count)


class _Index:
    """Where runs of tokens were last seen: for each size, tokens -> the position after their latest occurrence."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in SIZES}
        self._end = 0  # runs are indexed where the position after them lies before this

    def extend(self, request: Request) -> None:
        """Take in what is known of the request by now: all its tokens, and of the index a bounded piece.

        A run is indexed only once the token after it is known, so that the last tokens never find themselves.
        """
        tokens, known, start = self._tokens, len(self._tokens), self._end
        tokens += request.tokens(known, request.num_tokens - known)
        self._end = min(start + MOST_INDEXED, len(tokens))
        for size, after in self._after.items():
            first = max(size, start)
            runs = zip(*(tokens[first - size + i : self._end] for i in range(size)), strict=False)
            after.update(zip(runs, range(first, self._end), strict=False))

    def following(self, count: int) -> list[int]:
        """At most `count` tokens; where they reach the end, they go on with themselves: a circle is guessed whole."""
        for size, after in self._after.items():
            start = after.get(tuple(self._tokens[-size:]))
            if start is not None:
                guess = self._tokens[start : start + count]
                while len(guess) < count:
                    guess += guess[: count - len(guess)]
                return guess
        return []
