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

ROWS = 16
"""Positions at a time: float64 copies of 150,000 logits each are large."""


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
    cuts = [slice(start, start + ROWS) for start in range(0, len(targets), ROWS)]
    columns = zip(*(_score_rows(baseline[cut], logits[cut], targets[cut]) for cut in cuts), strict=True)
    return Scores(*(torch.cat(column).cpu() for column in columns))


def _score_rows(baseline: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four columns of a few rows."""
    log_p = baseline.double().log_softmax(-1)  # (N, V)
    log_q = logits.double().log_softmax(-1)  # (N, V)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1)  # (N,)
    agrees = baseline.argmax(-1) == logits.argmax(-1)  # (N,)
    surprise, baseline_surprise = (-log.gather(-1, targets[:, None])[:, 0] for log in (log_q, log_p))  # (N,) (N,)
    # Rounding may leave a sum of zeros a hair below zero, which a divergence cannot be.
    return divergence.clamp(min=0.0), agrees, surprise, baseline_surprise
