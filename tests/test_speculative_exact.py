"""Guessing changes nothing but speed: a toy model decoded with and without guesses, by our own sampler.

The loop below is what an engine does with guesses; the model is a Markov chain over seven tokens, whose exact
probabilities are the oracle.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch

from qwill.prompt_lookup import PromptLookup
from qwill.request import Request
from qwill.sampler import Sampled, Sampler
from qwill.sampling_params import SamplingParams
from qwill.speculative import Proposer, Speculation

VOCAB = 7
EOS = 6
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
"""Row i: the logits of what follows token i."""


class Fixed:
    """Guesses the same run each time, cut to what is wanted."""

    def __init__(self, *guess: int) -> None:
        self._guess = list(guess)

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        return [self._guess[:count] for count in most]

    def forget(self, request: Request) -> None:
        pass


class Dice(Fixed):
    """Guesses at random, now and then nothing."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        return [self._rng.choices(range(VOCAB), k=self._rng.randrange(count + 1)) for count in most]


class Knowing(Fixed):
    """Guesses what the model itself would take greedily."""

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        return [self._chain(request, count) for request, count in zip(requests, most, strict=True)]

    def _chain(self, request: Request, count: int) -> list[int]:
        tokens = request.tokens(request.num_tokens - 1, 1)
        for _ in range(count):
            tokens.append(int(TABLE[tokens[-1]].argmax()))
        return tokens[1:]


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "prompt lookup": PromptLookup,
    "dice": lambda: Dice(1),
    "knowing": Knowing,
    "always the end": lambda: Fixed(EOS, EOS, EOS),
    "an end as the second": lambda: Fixed(3, EOS, 2),
}


def decode(
    params: SamplingParams, proposer: Proposer | None, *, tokens: int = 24, prompt: Sequence[int] = (0, 3, 1)
) -> tuple[list[Sampled], Speculation]:
    """What was sampled, in order. The model computes a row for the last token and one for each guess."""
    request = Request("r", list(prompt), params, tokens)
    sampler = Sampler(params, prompt, VOCAB, eos_token_ids=frozenset([EOS]))
    speculation = Speculation(proposer or Fixed(), max_tokens=4)
    speculation.note_step(tokens=1, seconds=1.0)
    speculation.note_step(tokens=5, seconds=1.0)  # rows are free, so that there is much guessing
    sampled: list[Sampled] = []
    ended = False
    while not ended:
        request.num_computed_tokens = request.num_tokens - 1
        speculation.propose([request])
        draft = request.draft_token_ids
        rows = TABLE[[request.tokens(request.num_tokens - 1, 1)[0], *draft]]
        accepted = 0
        for row, guess in itertools.zip_longest(rows, draft):
            sampled.append(sampler.sample(row))
            request.output_token_ids.append(sampled[-1].token_id)
            ended = ends(request, params)
            if ended or sampled[-1].token_id != guess:
                break
            accepted += 1
        speculation.note_step(tokens=len(rows), seconds=1.0)
        speculation.note_accepted(request, len(draft), accepted)
    speculation.forget(request)
    return sampled, speculation


def ends(request: Request, params: SamplingParams) -> bool:
    last, count = request.output_token_ids[-1], len(request.output_token_ids)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    return count >= request.max_tokens or (last in stops and count >= params.min_tokens)


GREEDY = SamplingParams(temperature=0.0)
EVERYTHING = [
    GREEDY,
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=0.0, repetition_penalty=1.4, ignore_eos=True),
    SamplingParams(temperature=0.0, frequency_penalty=0.7, presence_penalty=0.3, ignore_eos=True),
    SamplingParams(seed=3),
    SamplingParams(seed=4, ignore_eos=True, logprobs=3),
    SamplingParams(seed=5, temperature=0.7, top_k=4, top_p=0.9, min_p=0.05, ignore_eos=True),
    SamplingParams(seed=6, frequency_penalty=1.5, presence_penalty=0.5, logprobs=2, ignore_eos=True),
    SamplingParams(seed=7, repetition_penalty=1.8, ignore_eos=True),
    SamplingParams(seed=8, min_tokens=9),
    SamplingParams(seed=9, stop_token_ids=[2], min_tokens=3),
    SamplingParams(seed=10, logit_bias={3: 2.0, EOS: 1.0}),
    SamplingParams(seed=11, temperature=3.0, ignore_eos=True),
]


@pytest.mark.parametrize("params", EVERYTHING, ids=range(len(EVERYTHING)))
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_tokens_and_logprobs_equal_those_without_guesses(params: SamplingParams, proposer: str) -> None:
    for prompt in [(0, 3, 1), (2,), (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2)]:
        alone, _ = decode(params, None, prompt=prompt)
        guessed, _ = decode(params, PROPOSERS[proposer](), prompt=prompt)
        assert guessed == alone


def test_the_right_guesses_are_taken_and_wrong_ones_are_not() -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    sampled, knowing = decode(params, Knowing(), tokens=60)
    assert knowing.stats.accepted == knowing.stats.drafted > 40
    assert knowing.stats.steps < 30
    never = min(set(range(VOCAB)) - {one.token_id for one in sampled})
    _, wrong = decode(params, Fixed(never, never), tokens=60)
    assert wrong.stats.accepted == 0 < wrong.stats.drafted


@pytest.mark.parametrize("length", range(1, 8))
def test_an_answer_has_its_length_to_the_token(length: int) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    assert len(decode(params, Knowing(), tokens=length)[0]) == length


def test_the_end_as_second_guess_ends_the_answer_there() -> None:
    chain = Knowing().propose([Request("r", [0], GREEDY, 9)], [2])[0]
    params = SamplingParams(temperature=0.0, stop_token_ids=[chain[1]], ignore_eos=True)
    sampled, speculation = decode(params, Fixed(*chain, 1, 1), prompt=[0])
    assert [one.token_id for one in sampled] == chain
    assert speculation.stats.accepted == 1  # the end itself is not gone past


def test_the_models_own_end_as_second_guess_ends_the_answer_there() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={EOS: 100.0}, min_tokens=1)
    alone = [one.token_id for one in decode(params, None)[0]]
    assert alone[1:] == [EOS]
    sampled, _ = decode(params, Fixed(alone[0], EOS, EOS, EOS))
    assert [one.token_id for one in sampled] == alone


@pytest.mark.parametrize("proposer", ["dice", "knowing", "prompt lookup"])
def test_the_joint_distribution_is_the_exact_one(proposer: str) -> None:
    answers, prompt, temperature = 2500, (1, 2, 3, 4, 1, 2), 1.3
    seen: Counter[tuple[int, ...]] = Counter()
    verified, guesser = 0, PROPOSERS[proposer]()
    for seed in range(answers):
        params = SamplingParams(temperature=temperature, seed=seed, ignore_eos=True)
        sampled, speculation = decode(params, guesser, tokens=3, prompt=prompt)
        seen[tuple(one.token_id for one in sampled)] += 1
        verified += speculation.stats.drafted
    step = torch.softmax(TABLE / temperature, dim=1)
    joint = step[prompt[-1]][:, None, None] * step[:, :, None] * step[None]
    assert verified > answers
    assert chi_squared_p(seen, joint, answers) > 1e-3


def chi_squared_p(seen: Counter[tuple[int, ...]], exact: torch.Tensor, total: int) -> float:
    """Pearson's test; cells that are expected less than eight times are one cell."""
    cells = [[seen[cell], total * float(exact[cell])] for cell in itertools.product(range(VOCAB), repeat=exact.ndim)]
    large = [cell for cell in cells if cell[1] >= 8]
    rare = [sum(column) for column in zip(*(cell for cell in cells if cell[1] < 8), strict=True)]
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in [*large, rare])
    half = torch.tensor([len(large) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
