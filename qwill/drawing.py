"""Drawing: which tokens of a row of logits may be drawn (temperature, top_k, top_p, min_p), and the draw itself.

Knows one row of numbers: no request, no grammar, no history. The arithmetic is NumPy's, which on one
row is up to ten times faster than torch, and the result does not depend on the row's place in a batch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from qwill.sampling_params import SamplingParams

__all__ = ["NEVER", "NUCLEUS_GUESS", "SUM_BLOCK", "Floats", "Ids", "at_least_kth", "candidates", "exp", "position"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

NUCLEUS_GUESS = 1024
"""top_p looks among this many most probable tokens first: sorting a whole vocabulary takes 15 ms."""
GROUP = 32
"""So many logits share one maximum when the largest ones are looked for."""
SUM_BLOCK = 512
"""So many probabilities are added up at once when one is drawn."""
NEVER = np.float32(-math.inf)
TINY = float(np.finfo(np.float32).tiny)


def candidates(values: Floats, peak: np.float32, params: SamplingParams) -> tuple[Ids | None, Floats]:
    """Ids (K,) that pass the filters, ascending or as sorted by top_p, and their weights (K,): probabilities up to a
    factor. Without ids, the weights are those of the whole vocabulary.

    `peak` is the largest logit. top_k looks at the logits before temperature, which does not change their order and
    would only round them. Tokens equal to the k-th stay, as in transformers. Weights are float32, but every sum over
    them is float64: in float32 the sum over a whole vocabulary can be off by more than a token's share.
    """
    ids = at_least_kth(values, params.top_k) if 0 < params.top_k < len(values) else None
    kept = values if ids is None else values[ids]
    # Subtracting the maximum first keeps small temperatures from overflowing; below TINY, 0 / 0 would be NaN.
    with np.errstate(over="ignore"):
        weights = exp((kept - peak) / max(params.temperature, TINY))
    if params.top_p < 1.0:
        nucleus = _nucleus(kept, weights, params.top_p)
        ids, weights = _among(ids, nucleus), weights[nucleus]
    if params.min_p > 0.0:
        likely = np.flatnonzero(weights >= params.min_p)  # the largest weight is 1
        ids, weights = _among(ids, likely), weights[likely]
    return ids, weights


def position(weights: Floats, share: float) -> int:
    """Where the running sum of the weights (K,) passes `share`, 0 … 1, of the total; never at a weight of 0.

    First among sums of blocks, then within one: adding up a whole vocabulary one by one takes milliseconds.
    """
    starts = np.arange(0, len(weights), SUM_BLOCK)
    ends = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    point = share * ends[-1]
    block = _first_past(ends, point)
    before = ends[block - 1] if block else 0.0
    inner = before + weights[starts[block] : starts[block] + SUM_BLOCK].cumsum(dtype=np.float64)
    return int(starts[block]) + _first_past(inner, point)


def _first_past(sums: NDArray[np.float64], point: float) -> int:
    """The first sum above the point; where rounding left none, the first that reaches the total."""
    return int(min(sums.searchsorted(point, side="right"), sums.searchsorted(sums[-1])))


def _among(ids: Ids | None, positions: Ids) -> Ids:
    """The ids at some positions, where None stands for all ids."""
    return positions if ids is None else ids[positions]


def _nucleus(values: Floats, weights: Floats, top_p: float) -> Ids:
    """Positions (K,) of the smallest set of most probable tokens whose probability reaches `top_p`.

    As in transformers, probabilities are summed from the least probable token up, and those whose sum stays
    within 1 - top_p go. Among equal tokens the lower ids go first (transformers leaves that to an unstable sort).
    The most probable one always stays.
    """
    total = float(weights.sum(dtype=np.float64))
    spare = (1.0 - top_p) * total
    if len(values) > NUCLEUS_GUESS:
        head = at_least_kth(values, NUCLEUS_GUESS)
        tail = total - float(weights[head].sum(dtype=np.float64))
        if tail <= spare:
            return head[_above(values[head], weights[head], spare - tail)]
    return _above(values, weights, spare)


def _above(values: Floats, weights: Floats, spare: float) -> Ids:
    """Positions of what stays when the least probable tokens, with at most `spare` weight in all, go."""
    order = values.argsort(kind="stable")
    stays = weights[order].cumsum(dtype=np.float64) > spare
    stays[-1] = True
    return order[stays]


def at_least_kth(values: Floats, k: int) -> Ids:
    """Positions, ascending, of all values that are at least the k-th largest: k of them, more when tied.

    -inf is never among them. The values are cut into groups; one whose maximum is below the k-th largest maximum
    cannot hold any, so only few groups need a closer look.
    """
    groups = len(values) // GROUP
    if k > groups:
        ids = np.flatnonzero(values > NEVER)
    else:
        maxima = values[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        chosen = np.flatnonzero((maxima >= _kth_largest(maxima, k)) & (maxima > NEVER))
        ids = (chosen + groups * np.arange(GROUP)[:, None]).ravel()
        ids = np.append(ids, np.arange(groups * GROUP, len(values)))
    kept = values[ids]
    low = _kth_largest(kept, k) if len(ids) > k else NEVER
    return ids[(kept >= low) & (kept > NEVER)]


def exp(values: Floats) -> Floats:
    """e to the power of each value, in place: the one function that torch computes faster."""
    torch.from_numpy(values).exp_()
    return values


def _kth_largest(values: Floats, k: int) -> np.float32:
    return np.float32(np.partition(values, len(values) - k)[len(values) - k])
