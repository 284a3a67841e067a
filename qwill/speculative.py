"""Speculation: how many tokens to guess for each request, and whether that pays at all. Torch-free, knows no model.

Guesses (a `Proposer` makes them) are verified all at once: the next step computes logits for a request's last token
and for k guesses after it, and the request's own sampler goes from row to row for as long as it chooses what was
guessed. So the tokens are, one for one, those that come without guessing, and only their speed is at stake here:
Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, whose expected gain is maximised over k, from 0 on.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Protocol

from qwill.request import Request
from qwill.step_cost import StepCost

__all__ = ["Proposer", "Speculation", "SpeculationStats", "best_lengths"]

logger = logging.getLogger("qwill")

FAIR_RATE = 0.6
"""How likely a guess is right before any was judged."""

LEARN, LEARN_TYPICAL = 0.15, 0.02
"""Weight of one judged guess, for its request and for what new requests start from."""

LEAST_RATE, MOST_RATE = 0.01, 0.98

WATCHED = 4
"""Guesses made to see whether they would have been right, where verifying does not pay."""

WATCHING_SHARE = 0.01
"""Share of the time that may be spent on such guesses."""


class Proposer(Protocol):
    """Guesses tokens. What it guesses affects speed only, so it may be wrong and it may give up."""

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        """For each request at most `most[i]` guessed token ids after its last known one; none is fine."""

    def forget(self, request: Request) -> None:
        """Free what is kept of a request. Harmless when nothing is."""


@dataclass
class SpeculationStats:
    """What became of the guesses. Counts from the start of the engine."""

    steps: int = 0
    """Decoding steps, with and without guesses."""
    drafted: int = 0
    """Guessed tokens that were verified."""
    accepted: int = 0
    """Guessed tokens that were right, and so came for nothing."""


@dataclass
class _Belief:
    """What is thought of guesses for one request. `watched` are guesses that are not verified but waited for."""

    rate: float
    answered: bool = False
    watched: list[int] = field(default_factory=list)
    watched_from: int = 0


class Speculation:
    """Owns a proposer; chooses lengths, and learns from each step whether guessing pays.

    A guess is taken to be right with the request's own `rate`, so the k-th one brings rate^k tokens. Guesses are
    added, best first, while they raise the whole step's expected tokens per second; in a large batch, whose rows
    are no longer nearly free, none does. A request without guesses is watched: the proposer guesses, at a hundredth
    of the time at most, and what then comes tells whether it was right.

    `max_tokens` bounds the guesses for one request and step. `clock` gives seconds and times the proposer.
    """

    def __init__(self, proposer: Proposer, *, max_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.stats = SpeculationStats()
        self._proposer = proposer
        self._max_tokens = max_tokens
        self._clock = clock
        self._beliefs: dict[Request, _Belief] = {}
        self._typical_rate = FAIR_RATE
        self._step_cost = StepCost()
        self._guess_seconds = 0.0  # of the proposer, for one more guess to every request
        self._allowance = 0.0  # seconds that may be spent on watching
        self._failed = False

    def propose(self, requests: Sequence[Request]) -> None:
        """Set the `draft_token_ids` of requests that are about to decode; of the others, and of most, to nothing."""
        for request in requests:
            request.draft_token_ids = []
        ready = [request for request in requests if request.use_cache and request.num_pending_tokens == 1]
        if not ready or self._failed:
            return
        for request in ready:
            self._compare_watched(request)
        rates = [self._beliefs[request].rate for request in ready]
        rooms = [self._room(request) for request in ready]
        lengths = best_lengths(rates, rooms, self._step_cost, self._guess_seconds)
        self._guess([(request, length) for request, length in zip(ready, lengths, strict=True) if length])
        self._watch([request for request, length in zip(ready, lengths, strict=True) if not length])

    def note_step(self, *, tokens: int, seconds: float) -> None:
        """Learn what a decoding step costs: `tokens` rows, guesses included, took so many seconds."""
        self.stats.steps += 1
        self._step_cost.note(tokens, seconds)
        self._allowance = min(self._allowance + WATCHING_SHARE * seconds, seconds)

    def note_accepted(self, request: Request, drafted: int, accepted: int) -> None:
        """Learn how a verified run went: of its `drafted` guesses the first `accepted` were right.

        Guesses after the end of an answer were not judged, and do not count as drafted. Harmless after `forget`.
        """
        if drafted:
            self.stats.drafted += drafted
            self.stats.accepted += accepted
            self._learn(self._beliefs.get(request), accepted, accepted < drafted)

    def forget(self, request: Request) -> None:
        """A request has ended. Harmless twice."""
        self._beliefs.pop(request, None)
        try:
            self._proposer.forget(request)
        except Exception:
            self._give_up()

    def _belief(self, request: Request) -> _Belief:
        return self._beliefs.setdefault(request, _Belief(self._typical_rate))

    def _learn(self, belief: _Belief | None, right: int, wrong: bool) -> None:
        """`right` guesses came true one after the other, and then, if `wrong`, one did not."""
        if belief is not None:
            belief.rate = _moved(belief.rate, LEARN, right, wrong)
        self._typical_rate = _moved(self._typical_rate, LEARN_TYPICAL, right, wrong)

    def _room(self, request: Request) -> int:
        """Most guesses that can be of use: the last token of an answer comes without guessing."""
        return max(min(self._max_tokens, request.max_tokens - len(request.output_token_ids) - 1), 0)

    def _guess(self, wanted: list[tuple[Request, int]]) -> None:
        """Guesses for the next step to verify."""
        guesses, _ = self._ask([request for request, _ in wanted], [length for _, length in wanted])
        for (request, _), guess in zip(wanted, guesses, strict=True):
            request.draft_token_ids = guess

    def _watch(self, idle: list[Request]) -> None:
        """Guess for requests that get no guesses to verify, only to see whether it would have been right."""
        if self._allowance < WATCHED * self._guess_seconds:
            return
        free = [request for request in idle if self._room(request) and not self._beliefs[request].watched]
        guesses, seconds = self._ask(free, [WATCHED] * len(free))
        self._allowance -= seconds
        for request, guess in zip(free, guesses, strict=True):
            belief = self._beliefs[request]
            belief.watched, belief.watched_from = guess, len(request.output_token_ids)

    def _compare_watched(self, request: Request) -> None:
        """Judge watched guesses as soon as one was wrong or all were right."""
        belief = self._belief(request)
        if not belief.watched:
            return
        came = request.output_token_ids[belief.watched_from : belief.watched_from + len(belief.watched)]
        right = 0
        while right < len(came) and came[right] == belief.watched[right]:
            right += 1
        if right < len(came) or right == len(belief.watched):
            self._learn(belief, right, right < len(came))
            belief.watched = []

    def _ask(self, requests: list[Request], most: list[int]) -> tuple[list[list[int]], float]:
        """The proposer's guesses, at most as many as asked for, and the seconds it took.

        One that fails, or gives anything but whole numbers for each request, is not asked again.
        """
        if not requests or self._failed:
            return [[] for _ in requests], 0.0
        start = self._clock()
        try:
            proposed = self._proposer.propose(requests, most)
            guesses = [[*map(index, guess[:count])] for guess, count in zip(proposed, most, strict=True)]
        except Exception:
            self._give_up()
            return [[] for _ in requests], 0.0
        seconds = self._clock() - start
        self._note_asked([self._beliefs[request] for request in requests], guesses, seconds / max(most))
        return guesses, seconds

    def _give_up(self) -> None:
        """Guesses only save time: whatever is wrong with them, the answers go on without."""
        logger.exception("guessing tokens failed; going on without speculative decoding")
        self._failed = True

    def _note_asked(self, beliefs: list[_Belief], guesses: list[list[int]], seconds: float) -> None:
        """Learn what one more guess for each request costs the proposer."""
        # A request's first guesses include reading its prompt, which says nothing about those that follow.
        if all(belief.answered for belief in beliefs):
            self._guess_seconds += LEARN * (seconds - self._guess_seconds)
        for belief, guess in zip(beliefs, guesses, strict=True):
            belief.answered |= bool(guess)


def best_lengths(rates: Sequence[float], rooms: Sequence[int], cost: StepCost, guess_seconds: float) -> list[int]:
    """How many guesses, 0 … rooms[i], each request gets, so that the step's expected tokens per second are most.

    `rates` are below 1. The guesses of highest gain come first; each costs the step a row, and each new depth costs
    the proposer `guess_seconds`. Once a gain is below what its row costs, so are all that follow.
    """
    rows, depth = len(rates), 0
    tokens, pace = float(rows), rows / cost.seconds(rows)
    gains = [(-rate, number, 1) for number, rate in enumerate(rates) if rooms[number] > 0]
    heapq.heapify(gains)
    taken: list[int] = []
    chosen = 0
    while gains and -gains[0][0] > pace * cost.slope:
        gain, number, k = heapq.heappop(gains)
        taken.append(number)
        tokens, rows, depth = tokens - gain, rows + 1, max(depth, k)
        if k < rooms[number]:
            heapq.heappush(gains, (gain * rates[number], number, k + 1))
        expected = tokens / (cost.seconds(rows) + depth * guess_seconds)
        if expected > pace:
            pace, chosen = expected, len(taken)
    counts = Counter(taken[:chosen])
    return [counts[number] for number in range(len(rates))]


def _moved(rate: float, weight: float, right: int, wrong: bool) -> float:
    """An exponential average after `right` ones and then, if `wrong`, a zero."""
    rate = 1.0 - (1.0 - rate) * (1.0 - weight) ** right
    return min(max(rate * (1.0 - weight) if wrong else rate, LEAST_RATE), MOST_RATE)
