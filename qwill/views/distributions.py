"""What rows of logits say: probabilities, ranks, entropy and the most probable tokens. Knows no text and no picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qwill.drawing import Floats, at_least_kth, exp

__all__ = ["Distribution", "chunks", "distribution", "significant"]

CHUNK_VALUES = 1 << 22
"""So many logits are computed together: 16 MB. A whole text's would be hundreds."""


@dataclass(frozen=True)
class Distribution:
    """What one row of logits says: of one of its tokens, the "chosen" one, and of its most probable ones.

    Attributes:
        logprob: natural logarithm of the chosen token's probability.
        rank: of the chosen token, from 1; among equals the lower id comes first.
        entropy: in bits.
        top: (token id, probability), the most probable first; among equals the lower id.
    """

    logprob: float
    rank: int
    entropy: float
    top: list[tuple[int, float]]


def distribution(logits: Floats, chosen: int, k: int) -> Distribution:
    """Softmax of one row of logits (V,) fp32, as the sampler computes it."""
    peak = logits.max()
    shifted = logits - peak  # (V,)
    weights = exp(shifted.copy())
    total = float(weights.sum(dtype=np.float64))
    mean = float(np.multiply(weights, shifted, out=weights).sum(dtype=np.float64)) / total
    log_total, picked = math.log(total), logits[chosen]
    ids = at_least_kth(logits, k) if k else np.arange(0)
    ids = ids[(-logits[ids]).argsort(kind="stable")][:k]
    return Distribution(
        logprob=float(shifted[chosen]) - log_total,
        rank=1 + int(np.count_nonzero(logits > picked)) + int(np.count_nonzero(logits[:chosen] == picked)),
        entropy=max(log_total - mean, 0.0) / math.log(2),
        top=[(int(token_id), math.exp(float(shifted[token_id]) - log_total)) for token_id in ids],
    )


def chunks(rows: int, vocab_size: int) -> Iterator[slice]:
    """Cut `rows` rows of logits into pieces of bounded memory."""
    size = max(1, CHUNK_VALUES // vocab_size)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def significant(value: float) -> float:
    """A number with six significant digits, for data that is written as text."""
    return float(f"{value:.6g}")
