"""What benchmarks/engine.py measures: how much of it, and what a finding is. Measures nothing itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from qwill import LLM
from qwill.engine import Engine

__all__ = ["Finding", "Work", "engine_of", "random_ids"]


@dataclass(frozen=True)
class Work:
    """How much is measured, on what."""

    model: str
    """Of real size; its weights may be random."""
    real: str = ""
    """One that has learnt something, and has a chat template."""
    tiny: str = ""
    """A small one, for thousands of requests."""
    quant: str = "int8"
    threads: int = 2
    rounds: int = 5
    prefix_tokens: int = 1024
    """Shared by two requests."""
    prompt_tokens: int = 32
    new_tokens: int = 64
    batch: int = 32
    answer_tokens: int = 512
    """At most, of an edited text."""
    requests: int = 5000
    early: int = 200
    """After so many requests the memory is noted for the first time."""
    text_tokens: int = 2048
    window: int = 512


@dataclass(frozen=True)
class Finding:
    """One figure, what it must reach, and the raw numbers that it comes from."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether it is as it must be; None where nothing is asked for."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return self.value >= self.at_least if self.at_least is not None else None


def engine_of(llm: LLM) -> Engine:
    """The engine inside an LLM: everything that is compared runs on the same weights at the same addresses."""
    engine = llm.service.engine
    assert engine is not None
    return engine


def random_ids(llm: LLM, count: int, seed: int) -> list[int]:
    """Tokens drawn at random; another seed has another first token, almost surely."""
    source = random.Random(seed)
    return [source.randrange(llm.tokenizer.vocab_size) for _ in range(count)]
