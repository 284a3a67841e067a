"""How many tokens are guessed, and that guessing stops where it does not pay. Time is what the tests say it is."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from qwill.request import Request
from qwill.sampling_params import SamplingParams
from qwill.speculative import Speculation, best_lengths
from qwill.step_cost import StepCost


class Guesses:
    """A proposer that always guesses; each round takes it `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now = 0.0
        self.seconds = seconds

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        self.now += self.seconds * max(most)
        return [[1] * count for count in most]

    def forget(self, request: Request) -> None:
        pass

    def clock(self) -> float:
        return self.now


class World:
    """Requests that decode: a guess is right with probability `rate`, a step takes `seconds(rows)`."""

    def __init__(self, requests: int, seconds: Callable[[int], float], *, most: int = 8, guess: float = 0.0) -> None:
        self.proposer = Guesses(guess)
        self.speculation = Speculation(self.proposer, max_tokens=most, clock=self.proposer.clock)
        self.requests = [decoding() for _ in range(requests)]
        self._seconds = seconds
        self._rng = random.Random(0)

    def run(self, steps: int, rate: float) -> float:
        """Tokens per second over so many steps."""
        tokens, start, seconds = 0, self.proposer.now, 0.0
        for _ in range(steps):
            self.speculation.propose(self.requests)
            rows = sum(1 + len(one.draft_token_ids) for one in self.requests)
            seconds += self._seconds(rows)
            self.speculation.note_step(tokens=rows, seconds=self._seconds(rows))
            tokens += sum(self._verify(one, rate) for one in self.requests)
        return tokens / (seconds + self.proposer.now - start)

    def _verify(self, one: Request, rate: float) -> int:
        drafted, accepted = len(one.draft_token_ids), 0
        # 1 is what is guessed; without guesses the coin decides too whether it would have been right.
        while (right := self._rng.random() < rate) and accepted < drafted:
            accepted += 1
        one.output_token_ids += [1] * accepted + [1 if right and not drafted else 2]
        one.num_computed_tokens = one.num_tokens - 1
        self.speculation.note_accepted(one, drafted, accepted)
        return accepted + 1

    @property
    def drafted(self) -> int:
        return self.speculation.stats.drafted


def decoding(max_tokens: int = 10**9, **more: object) -> Request:
    return Request("r", [5, 6], SamplingParams(), max_tokens, num_computed_tokens=1, **more)  # type: ignore[arg-type]


def memory_bound(rows: int) -> float:
    return 0.030 + 0.004 * rows


def expected_pace(rate: float, guesses: int, requests: int, seconds: Callable[[int], float]) -> float:
    """Leviathan et al. 2023, equation 1, over the time of a step."""
    tokens = sum(rate**k for k in range(guesses + 1))
    return requests * tokens / seconds(requests * (guesses + 1))


@pytest.mark.parametrize("seed", range(40))
def test_lengths_are_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    cost = StepCost()
    base, slope = rng.uniform(0, 10), rng.uniform(0, 5)
    for rows in [1, 4] * 200:
        cost.note(rows, base + slope * rows + 1e-3)
    rates = [rng.uniform(0.01, 0.98) for _ in range(rng.randrange(1, 4))]
    rooms = [rng.randrange(5) for _ in rates]

    def pace(lengths: Sequence[int]) -> float:
        tokens = sum(rate**k for rate, length in zip(rates, lengths, strict=True) for k in range(length + 1))
        return tokens / cost.seconds(len(rates) + sum(lengths))

    best = max(map(pace, itertools.product(*(range(room + 1) for room in rooms))))
    lengths = best_lengths(rates, rooms, cost, guess_seconds=0.0)
    assert all(length <= room for length, room in zip(lengths, rooms, strict=True))
    assert pace(lengths) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("requests", [1, 4])
def test_its_pace_is_near_that_of_the_best_fixed_length(rate: float, requests: int) -> None:
    best = max(expected_pace(rate, guesses, requests, memory_bound) for guesses in range(9))
    world = World(requests, memory_bound)
    world.run(50, rate)
    assert world.run(1500, rate) > 0.94 * best


def test_a_large_batch_gets_no_guesses() -> None:
    world = World(64, memory_bound)
    world.run(20, 0.5)
    before = world.drafted
    world.run(100, 0.5)
    assert world.drafted - before < 20


def test_guesses_that_are_never_right_end_soon_and_cost_little() -> None:
    world = World(1, memory_bound)
    assert world.run(400, 0.0) > 0.98 / memory_bound(1)
    assert world.drafted < 20


def test_guessing_comes_back_when_it_would_pay_again() -> None:
    world = World(1, memory_bound)
    world.run(500, 0.0)
    world.run(100, 0.95)
    best = max(expected_pace(0.95, guesses, 1, memory_bound) for guesses in range(9))
    assert world.run(300, 0.95) > 0.9 * best


def test_a_proposer_that_takes_too_long_is_hardly_asked() -> None:
    world = World(1, memory_bound, guess=0.050)
    world.run(50, 0.8)
    assert world.run(500, 0.8) > 0.97 / memory_bound(1)


def test_reading_a_prompt_for_the_first_guess_does_not_count_against_those_that_follow() -> None:
    world = World(1, memory_bound, guess=5.0)
    world.run(1, 1.0)
    world.proposer.seconds = 0.001
    before = world.drafted
    world.run(5, 1.0)
    assert world.drafted - before > 15


def test_a_costly_proposer_that_pays_is_used_and_comes_back() -> None:
    world = World(1, memory_bound, guess=0.005)
    plain = 1 / memory_bound(1)
    world.run(100, 0.9)
    assert world.run(500, 0.9) > 1.8 * plain
    assert world.run(1000, 0.0) > 0.95 * plain
    world.run(1000, 0.9)
    assert world.run(500, 0.9) > 1.8 * plain


@pytest.mark.parametrize(("left", "most"), [(1, 0), (2, 1), (3, 2), (50, 4)])
def test_nothing_is_guessed_past_the_longest_answer(left: int, most: int) -> None:
    proposer = Guesses()
    speculation = Speculation(proposer, max_tokens=4)
    for rows in [1, 4] * 50:
        speculation.note_step(tokens=rows, seconds=1.0 + 1e-6 * rows)  # a row is as good as free
    one = decoding(10, output_token_ids=[1] * (10 - left))
    one.num_computed_tokens = one.num_tokens - 1
    speculation.propose([one])
    assert len(one.draft_token_ids) == most


def test_only_requests_that_are_about_to_decode_get_guesses() -> None:
    ready, prompt, uncached = decoding(), decoding(), decoding(use_cache=False)
    prompt.num_computed_tokens = 0
    prompt.draft_token_ids = uncached.draft_token_ids = [3]
    Speculation(Guesses(), max_tokens=4).propose([prompt, ready, uncached])
    assert (prompt.draft_token_ids, uncached.draft_token_ids) == ([], [])
    assert ready.draft_token_ids


def test_without_requests_nothing_happens() -> None:
    Speculation(Guesses(), max_tokens=4).propose([])


def test_a_request_whose_rate_is_better_gets_more_guesses() -> None:
    good, bad = decoding(), decoding()
    speculation = Speculation(Guesses(), max_tokens=8)
    speculation.propose([good, bad])
    for _ in range(5):
        speculation.note_accepted(good, 4, 4)
        speculation.note_accepted(bad, 4, 0)
    speculation.propose([good, bad])
    assert len(good.draft_token_ids) > 4
    assert len(bad.draft_token_ids) == 0


def test_a_proposer_that_fails_is_reported_once_and_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Guesses):
        asked = 0

        def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
            self.asked += 1
            raise ValueError("no")

    broken, one = Broken(), decoding()
    speculation = Speculation(broken, max_tokens=4)
    with caplog.at_level(logging.ERROR, logger="qwill"):
        for _ in range(3):
            speculation.propose([one])
    assert (broken.asked, one.draft_token_ids, len(caplog.records)) == (1, [], 1)


@pytest.mark.parametrize(
    "guesses",
    [None, [], [[1], [2], [3]], [None, None], [[1.0], [1]], ["ab", [1]], [["1"], [1]], [[None], []]],
)
def test_guesses_that_are_none_end_guessing_and_nothing_else(guesses: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Guesses):
        def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
            return guesses  # type: ignore[no-any-return]

    two = [decoding(), decoding()]
    speculation = Speculation(Odd(), max_tokens=4)
    for _ in range(2):
        speculation.propose(two)
    assert [one.draft_token_ids for one in two] == [[], []]
    assert len(caplog.records) == 1


def test_more_guesses_than_were_asked_for_are_cut() -> None:
    class Eager(Guesses):
        def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
            return [[7] * 1000 for _ in requests]

    one = decoding(max_tokens=4)
    Speculation(Eager(), max_tokens=16).propose([one])
    assert len(one.draft_token_ids) <= 3


def test_a_proposer_that_cannot_forget_ends_guessing_only(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Guesses):
        def forget(self, request: Request) -> None:
            raise ValueError("no")

    one = decoding()
    speculation = Speculation(Stubborn(), max_tokens=4)
    speculation.forget(one)
    speculation.propose([one])
    assert (one.draft_token_ids, len(caplog.records)) == ([], 1)


def test_a_forgotten_request_leaves_nothing_behind() -> None:
    speculation, one = Speculation(Guesses(), max_tokens=4), decoding()
    speculation.propose([one])
    speculation.forget(one)
    speculation.forget(one)
    speculation.note_accepted(one, 2, 1)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_statistics_add_up() -> None:
    speculation, one = Speculation(Guesses(), max_tokens=4), decoding()
    speculation.note_accepted(one, 4, 4)
    speculation.note_accepted(one, 3, 1)
    speculation.note_accepted(one, 0, 0)
    speculation.note_step(tokens=5, seconds=0.1)
    stats = speculation.stats
    assert (stats.steps, stats.drafted, stats.accepted) == (1, 7, 5)
