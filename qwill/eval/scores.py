"""Two models' logits at the same positions, compared in float64. Knows no model, no text and no file.

N positions, V entries of the vocabulary. The baseline's distribution P is the truth, the other model's is Q:
KL(P ‖ Q) = Σ P (log P − log Q), in nats (Kullback and Leibler 1951).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qwill.errors import ModelError

__all__ = ["Scores", "score"]


@dataclass(frozen=True)
class Scores:
    """One number of each kind per position; all (N,) on the CPU."""

    divergence: Tensor
    """float64, KL(baseline ‖ model) in nats, never below zero."""
    agrees: Tensor
    """bool, whether both find the same token the likeliest."""
    surprise: Tensor
    """float64, −log of the probability that the model gave to the text's own next token."""
    baseline_surprise: Tensor
    """float64, the same of the baseline."""


def score(baseline: Tensor, logits: Tensor, targets: Tensor) -> Scores:
    """Compare the baseline's logits (N, V) with the model's (N, V), where `targets` (N,) int64 is what came next.

    Raises:
        ModelError: some logits are not finite.
    """
    for name, values in (("the baseline", baseline), ("the model", logits)):
        if not bool(torch.isfinite(values).all()):
            raise ModelError(f"{name} computed logits that are not finite", hint="try dtype float32")
    rows = [_score_row(*row) for row in zip(baseline, logits, targets, strict=True)]
    return Scores(*(torch.stack(column).cpu() for column in zip(*rows, strict=True)))


def _score_row(baseline: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four numbers of one position, logits (V,) each: float64 copies of so few stay in the processor's cache."""
    log_p, log_q = baseline.double().log_softmax(-1), logits.double().log_softmax(-1)  # (V,) (V,)
    divergence = (log_p.exp() * (log_p - log_q)).sum()  # ()
    # Rounding may leave a sum of zeros a hair below zero, which a divergence cannot be.
    return divergence.clamp(min=0.0), baseline.argmax() == logits.argmax(), -log_q[target], -log_p[target]
