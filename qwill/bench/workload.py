"""Requests to serve: their prompts, how long their answers are, and when they arrive. The same for the same settings.

Prompts are drawn, token by token, from the tokens of a real text, so that no two share more than the prefix that they
are given. Torch-free; knows no engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from qwill.bench.prompts import TEXT
from qwill.errors import SettingError
from qwill.settings import check_settings, setting
from qwill.tokenizer import Tokenizer

__all__ = ["Arrival", "ServeSettings", "make_workload", "warm_up"]

MOST_TOKENS = 2**20
WARM_UP_PROMPT, WARM_UP_NEW = 8, 4


@dataclass(frozen=True)
class ServeSettings:
    """What is served. The engine's own settings (max_num_seqs, quant, threads …) are `EngineSettings`."""

    requests: int = setting(64, "how many requests", low=1, high=2**20)
    prompt_tokens: tuple[int, ...] = setting(
        (128,), "length of the prompts; given twice, the smallest and the largest", unit="tokens"
    )
    new_tokens: tuple[int, ...] = setting(
        (64,), "new tokens of each; given twice, the fewest and the most", unit="tokens"
    )
    shared_prefix: int = setting(
        0, "tokens in front of every prompt, the same for all, besides prompt_tokens", unit="tokens", low=0, high=2**20
    )
    rate: float = setting(
        0.0, "requests that arrive per second, at random moments (Poisson); 0: all at once", low=0.0, high=1e6
    )
    sampled: bool = setting(False, "sample as the model's own settings say; without it, greedy")
    seed: int = setting(0, "of prompts, lengths, moments and sampling", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("prompt_tokens", "new_tokens"):
            _check_range(name, getattr(self, name))

    @property
    def longest(self) -> tuple[int, int]:
        """The longest prompt, its prefix included, and the most new tokens."""
        return self.shared_prefix + self.prompt_tokens[-1], self.new_tokens[-1]


@dataclass(frozen=True)
class Arrival:
    """One request: it arrives so many seconds after the start."""

    seconds: float
    prompt_token_ids: list[int]
    new_tokens: int


def make_workload(settings: ServeSettings, tokenizer: Tokenizer) -> list[Arrival]:
    """The requests in order of arrival; the first arrives at once."""
    source, words = random.Random(settings.seed), tokenizer.encode(TEXT)
    prefix = source.choices(words, k=settings.shared_prefix)
    moment, arrivals = 0.0, []
    for _ in range(settings.requests):
        length, new = _draw(source, settings.prompt_tokens), _draw(source, settings.new_tokens)
        arrivals.append(Arrival(moment, prefix + source.choices(words, k=length), new))
        moment += source.expovariate(settings.rate) if settings.rate else 0.0
    return arrivals


def warm_up(count: int, tokenizer: Tokenizer) -> list[Arrival]:
    """So many short requests, to be served before anything is measured."""
    words = tokenizer.encode(TEXT)
    return [Arrival(0.0, random.Random(-1 - i).choices(words, k=WARM_UP_PROMPT), WARM_UP_NEW) for i in range(count)]


def _draw(source: random.Random, lengths: Sequence[int]) -> int:
    return source.randint(lengths[0], lengths[-1])


def _check_range(name: str, lengths: object) -> None:
    """Refuse what is neither one length nor two in order.

    Raises:
        SettingError: says what is allowed.
    """
    good = isinstance(lengths, tuple) and 1 <= len(lengths) <= 2
    if not good or not all(type(n) is int and 1 <= n <= MOST_TOKENS for n in lengths):  # type: ignore[attr-defined]
        raise SettingError(f"{name} = {lengths!r:.100}", hint=f"one length of 1 … {MOST_TOKENS} tokens, or two")
    if lengths[0] > lengths[-1]:  # type: ignore[index]
        raise SettingError(f"{name} = {lengths!r:.100}", hint="first the smaller, then the larger")
