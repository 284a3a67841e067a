"""The numbers of an evaluation, and what is derived from them. Measures nothing and shows nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from qwill.eval.scores import Scores
from qwill.weights import weights_of

__all__ = ["Divergence", "Quality", "Size", "as_record", "model_size", "summarize"]

SCHEMA = 1
"""Version of the JSON layout."""


@dataclass(frozen=True)
class Size:
    """What a model's weights take in memory. A tied embedding counts once; norms and biases count too."""

    parameters: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of memory per weight, scales and padding included."""
        return 8 * self.nbytes / self.parameters


def model_size(model: nn.Module) -> Size:
    """Add up every weight and bias of a model, plain or packed."""
    tensors = weights_of(model)
    return Size(sum(math.prod(tensor.shape) for tensor in tensors), sum(tensor.nbytes for tensor in tensors))


@dataclass(frozen=True)
class Divergence:
    """KL(baseline ‖ model) over all positions, in nats."""

    mean: float
    standard_error: float | None
    """Of the mean, as if positions were independent of each other; None for a single position."""
    median: float
    percentile_99: float
    maximum: float


@dataclass(frozen=True)
class Quality:
    """What was measured of one model against its baseline, on one text."""

    model: str
    baseline: str
    settings: dict[str, Any]
    size: Size
    baseline_size: Size
    text: str
    """The file's name."""
    text_sha256: str
    text_tokens: int
    """Tokens of the text, or as many as were asked for."""
    window: int
    """Tokens of context at most; each window begins with an empty context, so its first token is not predicted."""
    positions: int
    """Predicted tokens that count."""
    divergence: Divergence
    top1_agreement: float
    """Percent of positions where both models find the same token the likeliest."""
    perplexity: float
    baseline_perplexity: float
    interrupted: bool
    """Whether it was stopped before the end of the text; the numbers are of `positions` alone."""
    versions: dict[str, str] = field(default_factory=dict)


def summarize(scores: Sequence[Scores]) -> dict[str, Any]:
    """The fields of `Quality` that come from the scores of at least one position."""
    divergence = torch.cat([one.divergence for one in scores])
    count = len(divergence)
    return {
        "positions": count,
        "divergence": Divergence(
            mean=divergence.mean().item(),
            standard_error=divergence.std().item() / math.sqrt(count) if count > 1 else None,
            median=divergence.quantile(0.5).item(),
            percentile_99=divergence.quantile(0.99).item(),
            maximum=divergence.max().item(),
        ),
        "top1_agreement": 100 * torch.cat([one.agrees for one in scores]).double().mean().item(),
        "perplexity": math.exp(torch.cat([one.surprise for one in scores]).mean().item()),
        "baseline_perplexity": math.exp(torch.cat([one.baseline_surprise for one in scores]).mean().item()),
    }


def as_record(quality: Quality) -> dict[str, Any]:
    """Everything as plain data for JSON."""
    record = {"schema": SCHEMA, "evaluation": "kl", **asdict(quality)}
    for name, size in (("size", quality.size), ("baseline_size", quality.baseline_size)):
        record[name]["bits_per_weight"] = size.bits_per_weight
    return record
