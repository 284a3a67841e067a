"""Sampler: the logits of one request's last position in, its next token id out.

Knows token ids only: no text, no model, no batch. Each request owns one `Sampler`, with its own random
generator and its own counts of past tokens, so what a request gets never depends on its neighbours.

The order is Hugging Face's and vLLM's:
ids past the vocabulary cut off -> logit_bias -> repetition penalty -> presence and frequency penalty
-> what the grammar does not allow, and stop tokens until min_tokens, masked -> (log probabilities are reported from
here) -> temperature -> top_k -> top_p -> min_p -> draw.
A token that must come, </think> at the end of the thinking budget, comes whatever the rest says.

Everything is computed on the CPU, from float32 logits on, whatever the model's device and dtype, so one seed
gives one answer on every device. The arithmetic is NumPy's: on one row it is two to ten times faster than torch, and
the result depends neither on a number of threads nor on the row's place in a batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwill.errors import ModelError, SettingError
from qwill.grammar import Matcher
from qwill.sampling_params import SamplingParams
from qwill.thinking import Thinking

__all__ = ["Sampled", "Sampler", "distribution"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Bits = NDArray[np.uint8]

NUCLEUS_GUESS = 1024
"""top_p looks among this many most probable tokens first: sorting a whole vocabulary takes 15 ms."""
GROUP = 32
"""So many logits share one maximum when the largest ones are looked for."""
SUM_BLOCK = 512
"""So many probabilities are added up at once when one is drawn."""
NEVER = np.float32(-math.inf)
TINY = float(np.finfo(np.float32).tiny)
LIMITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), -NEVER, NEVER)
"""(256, 8) fp32: the eight limits, +inf or -inf, that one byte of a mask stands for."""


class Sampled(NamedTuple):
    """One chosen token.

    `logprob` (natural logarithm) and `top` are given when `SamplingParams.logprobs` is set. `top` lists
    (token id, logprob, rank from 1), the most probable first, without tokens that cannot come; the chosen one is
    always there.
    """

    token_id: int
    logprob: float | None
    top: list[tuple[int, float, int]]


class Sampler:
    """Chooses the tokens of one answer, one call per token.

    `vocab_size` counts real tokens: logits at and past it are never looked at. `index` is the answer's
    number when a request asks for n answers; it is added to the seed. `grammar` is a fresh matcher, whose masks are
    `vocab_size` long, and `thinking` the state of a chat's answer; both are kept up to date here.

    Raises:
        SettingError: logit_bias or stop_token_ids name an id outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        *,
        eos_token_ids: frozenset[int],
        index: int = 0,
        grammar: Matcher | None = None,
        thinking: Thinking | None = None,
    ) -> None:
        bias = params.logit_bias or {}
        _check_ids("logit_bias", bias, vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        self._params = params
        self._vocab_size = vocab_size
        self._generator = _generator(params.seed, index)
        self._bias_ids = np.array(list(bias), dtype=np.int64)
        self._bias_values = np.array(list(bias.values()), dtype=np.float32)
        ends = [token_id for token_id in sorted(eos_token_ids) if token_id < vocab_size]
        self._eos_token_ids = np.array(ends, dtype=np.int64)
        self._stop_ids = np.array([*params.stop_token_ids, *([] if params.ignore_eos else ends)], dtype=np.int64)
        self._history = _History(prompt_token_ids, vocab_size) if _has_penalty(params) else None
        self._grammar = grammar
        self._thinking = thinking
        self._num_sampled = 0

    @property
    def finished(self) -> bool:
        """Whether the grammar is fulfilled and nothing may follow: the answer ends here, with "stop"."""
        return self._grammar is not None and self._grammar.finished

    def sample(self, logits: Tensor) -> Sampled:
        """Choose the next token and remember it.

        `logits` is (V,) of any float dtype, V at least `vocab_size`; it is not changed.

        Raises:
            ModelError: the logits hold NaN or +inf, or leave no token to choose.
            SettingError: the grammar became too complex.
        """
        values = _real_logits(logits, self._vocab_size)
        best = _argmax(values)
        if self._thinking is not None and self._thinking.forced is not None:
            return self._take_forced(self._thinking.forced)
        edited = self._edited(values)
        if edited is not values:
            best = _argmax(edited)
        token_id = best if self._params.greedy else self._draw(edited, edited[best])
        self._remember(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id, None, [])
        return _with_logprobs(edited, edited[best], token_id, self._params.logprobs)

    def _take_forced(self, token_id: int) -> Sampled:
        """The one token that may come. It takes a number from the generator like any other."""
        if not self._params.greedy:
            self._uniform()
        self._remember(token_id)
        return (
            Sampled(token_id, None, [])
            if self._params.logprobs is None
            else Sampled(token_id, 0.0, [(token_id, 0.0, 1)])
        )

    def _edited(self, values: Floats) -> Floats:
        """Logits (V,) after bias, penalties and masks; `values` itself when none applies."""
        held = self._held_ids()
        if len(held) or len(self._bias_ids) or self._history is not None:
            values = values.copy()
        if len(self._bias_ids):
            values[self._bias_ids] += self._bias_values
        if self._history is not None:
            self._history.penalize(values, self._params)
        if self._grammar is not None and self._constrained:
            return _masked(values, self._mask(self._grammar, held))
        if len(held):
            values[held] = NEVER
        return values

    def _mask(self, grammar: Matcher, held: Ids) -> Bits:
        """Which tokens may come next, (V / 8,) packed. Where the grammar allows nothing but an end, it may come."""
        mask = grammar.mask()
        if self._thinking is not None and self._thinking.may_open is not None:
            _set_bits(mask, [self._thinking.may_open], True)
        rest = mask.copy()
        _set_bits(rest, held, False)
        return rest if rest.any() else mask

    def _held_ids(self) -> Ids:
        """Ends that may not come yet: before min_tokens, and before the answer that has to follow a grammar."""
        ids = self._stop_ids if self._num_sampled < self._params.min_tokens else self._stop_ids[:0]
        return ids if self._grammar is None or self._constrained else np.concatenate([ids, self._eos_token_ids])

    @property
    def _constrained(self) -> bool:
        return self._thinking is None or self._thinking.constrained

    def _remember(self, token_id: int) -> None:
        self._num_sampled += 1
        if self._history is not None:
            self._history.add(token_id)
        answers = self._constrained
        if self._thinking is not None:
            self._thinking.push(token_id)
        if self._grammar is not None and answers and self._constrained:  # neither thinking nor <think> or </think>
            self._grammar.accept(token_id)

    def _draw(self, values: Floats, peak: np.float32) -> int:
        """Draw from the filtered distribution: one uniform number, looked up in the cumulated probabilities."""
        ids, weights = _candidates(values, peak, self._params)
        position = _position(weights, self._uniform())
        return position if ids is None else int(ids[position])

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities (V,) fp32 from which a token is drawn: temperature -> top_k -> top_p -> min_p.

    `logits` is (V,). Temperature 0 gives all probability to the largest logit, the lowest id on ties.

    Raises:
        ModelError: the logits hold NaN or +inf, or nothing but -inf.
    """
    values = _real_logits(logits, len(logits))
    best = _argmax(values)
    probabilities = np.zeros_like(values)
    if params.greedy:
        probabilities[best] = 1.0
    else:
        ids, weights = _candidates(values, values[best], params)
        probabilities[slice(None) if ids is None else ids] = weights / weights.sum(dtype=np.float64)
    return torch.from_numpy(probabilities)


class _History:
    """The distinct tokens of prompt and answer, and how often each is in the answer; grows by one per token."""

    def __init__(self, prompt_token_ids: Sequence[int], vocab_size: int) -> None:
        prompt = [token_id for token_id in dict.fromkeys(prompt_token_ids) if token_id < vocab_size]
        self._slots = {token_id: slot for slot, token_id in enumerate(prompt)}
        self._ids = np.array(prompt, dtype=np.int64)
        self._counts = np.zeros(len(prompt), dtype=np.float32)

    def add(self, token_id: int) -> None:
        """Count one token of the answer."""
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            spare = 64 + slot  # room doubles, so that adding stays cheap
            self._ids = np.append(self._ids, np.zeros(spare, dtype=np.int64))
            self._counts = np.append(self._counts, np.zeros(spare, dtype=np.float32))
        self._ids[slot] = token_id
        self._counts[slot] += 1

    def penalize(self, values: Floats, params: SamplingParams) -> None:
        """Apply the three penalties to the logits (V,) of the tokens seen so far, in place."""
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        seen = values[ids]
        penalty = params.repetition_penalty
        with np.errstate(over="ignore"):  # what overflows is told as a logit that is not finite
            seen = np.where(seen > 0, seen / penalty, seen * penalty)
        seen -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        values[ids] = seen


def _candidates(values: Floats, peak: np.float32, params: SamplingParams) -> tuple[Ids | None, Floats]:
    """Ids (K,) that pass the filters, ascending or as sorted by top_p, and their weights (K,): probabilities up to a
    factor. Without ids, the weights are those of the whole vocabulary.

    `peak` is the largest logit. top_k looks at the logits before temperature, which does not change their order and
    would only round them. Tokens equal to the k-th stay, as in transformers. Weights are float32, but every sum over
    them is float64: in float32 the sum over a whole vocabulary can be off by more than a token's share.
    """
    ids = _at_least_kth(values, params.top_k) if 0 < params.top_k < len(values) else None
    kept = values if ids is None else values[ids]
    # Subtracting the maximum first keeps small temperatures from overflowing; below TINY, 0 / 0 would be NaN.
    with np.errstate(over="ignore"):
        weights = _exp((kept - peak) / max(params.temperature, TINY))
    if params.top_p < 1.0:
        nucleus = _nucleus(kept, weights, params.top_p)
        ids, weights = _among(ids, nucleus), weights[nucleus]
    if params.min_p > 0.0:
        likely = np.flatnonzero(weights >= params.min_p)  # the largest weight is 1
        ids, weights = _among(ids, likely), weights[likely]
    return ids, weights


def _position(weights: Floats, share: float) -> int:
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
        head = _at_least_kth(values, NUCLEUS_GUESS)
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


def _at_least_kth(values: Floats, k: int) -> Ids:
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


def _exp(values: Floats) -> Floats:
    """e to the power of each value, in place: the one function that torch computes faster."""
    torch.from_numpy(values).exp_()
    return values


def _kth_largest(values: Floats, k: int) -> np.float32:
    return np.float32(np.partition(values, len(values) - k)[len(values) - k])


def _argmax(values: Floats) -> int:
    """Position of the largest value, the lowest on ties: numpy promises that, torch.argmax does not.

    NumPy's argmax also stops at the first NaN, so one look at the winner tells whether all is well.
    """
    best = int(values.argmax())
    if not math.isfinite(values[best]):
        raise ModelError(
            f"the logits are not finite: the largest is {values[best]}",
            where=f"token id {best}",
            hint="try dtype=float32; if it stays, check the file with: qwill verify MODEL",
        )
    return best


def _with_logprobs(values: Floats, peak: np.float32, token_id: int, count: int) -> Sampled:
    """The chosen token's log probability and rank, and those of the `count` most probable ones."""
    log_total = float(peak) + math.log(_exp(values - peak).sum(dtype=np.float64))
    top: list[tuple[int, float, int]] = []
    if count > 0:
        ids = _at_least_kth(values, count)
        order = ids[(-values[ids]).argsort(kind="stable")][:count]
        top = [(int(i), float(values[i]) - log_total, rank) for rank, i in enumerate(order, start=1)]
    logprob = float(values[token_id]) - log_total
    if all(i != token_id for i, _, _ in top):
        top.append((token_id, logprob, _rank(values, token_id)))
    return Sampled(token_id, logprob, top)


def _rank(values: Floats, token_id: int) -> int:
    """Rank from 1; among equal logits the lower id comes first."""
    chosen = values[token_id]
    return 1 + int(np.count_nonzero(values > chosen)) + int(np.count_nonzero(values[:token_id] == chosen))


def _real_logits(logits: Tensor, vocab_size: int) -> Floats:
    """(vocab_size,) fp32 on the CPU, often a view: the rows of real tokens, without the padding after them."""
    if logits.ndim != 1 or len(logits) < vocab_size:
        raise ModelError(f"logits of shape {tuple(logits.shape)} cannot hold {vocab_size} tokens")
    values: Floats = logits[:vocab_size].detach().to("cpu", torch.float32).numpy()
    return values


def _masked(values: Floats, mask: Bits) -> Floats:
    """Logits (V,) with -inf where the mask has no bit. Table and minimum: no branches, a tenth of np.where's time."""
    limits: Floats = LIMITS.take(mask, axis=0).reshape(-1)[: len(values)]
    return np.minimum(values, limits, out=limits)


def _set_bits(mask: Bits, ids: Iterable[int], on: bool) -> None:
    for token_id in ids:
        bit = np.uint8(1 << (token_id & 7))
        mask[token_id >> 3] = mask[token_id >> 3] | bit if on else mask[token_id >> 3] & ~bit


def _generator(seed: int | None, index: int) -> torch.Generator:
    start = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    return torch.Generator().manual_seed((start + index) % 2**64)


def _has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if token_id >= vocab_size:
            raise SettingError(
                f"{name}: token id {token_id} is outside the vocabulary", hint=f"allowed: 0 … {vocab_size - 1}"
            )
