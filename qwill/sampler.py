"""Sampler: the logits of one request's last position in, its next token id out.

Knows token ids only: no text, no model, no batch. Each request owns one `Sampler`, with its own random
generator and its own counts of past tokens, so what a request gets never depends on its neighbours.

The order is Hugging Face's and vLLM's:
ids past the vocabulary cut off -> logit_bias -> repetition penalty -> presence and frequency penalty
-> stop tokens masked until min_tokens -> (log probabilities are reported from here)
-> temperature -> top_k -> top_p -> min_p -> draw.

Everything is computed on the CPU, from float32 logits on, whatever the model's device and dtype, so one seed
gives one answer on every device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qwill.errors import ModelError, SettingError
from qwill.sampling_params import SamplingParams

__all__ = ["Sampled", "Sampler", "distribution"]

NUCLEUS_GUESS = 1024
"""top_p looks among this many most probable tokens first: sorting a whole vocabulary takes 15 ms."""


class Sampled(NamedTuple):
    """One chosen token.

    `logprob` (natural logarithm) and `top` are given when `SamplingParams.logprobs` is set. `top` lists
    (token id, logprob, rank from 1), the most probable first, and always holds the chosen token.
    """

    token_id: int
    logprob: float | None
    top: list[tuple[int, float, int]]


class Sampler:
    """Chooses the tokens of one answer, one call per token.

    `vocab_size` counts real tokens: logits at and past it are never looked at. `index` is the answer's
    number when a request asks for n answers; it is added to the seed.

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
    ) -> None:
        bias = params.logit_bias or {}
        _check_ids("logit_bias", bias, vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        self._params = params
        self._vocab_size = vocab_size
        self._generator = _generator(params.seed, index)
        self._bias_ids = torch.tensor(list(bias), dtype=torch.int64)
        self._bias_values = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._stop_ids = torch.tensor(sorted(_ending_ids(params, eos_token_ids, vocab_size)), dtype=torch.int64)
        self._history = _History(prompt_token_ids, vocab_size) if _has_penalty(params) else None
        self._num_sampled = 0

    def sample(self, logits: Tensor) -> Sampled:
        """Choose the next token and remember it.

        `logits` is (V,) of any float dtype, V at least `vocab_size`; it is not changed.

        Raises:
            ModelError: the logits hold NaN or +inf, or leave no token to choose.
        """
        values = _real_logits(logits, self._vocab_size)
        best = _argmax(values)
        edited = self._edited(values)
        if edited is not values:
            best = _argmax(edited)
        token_id = best if self._params.greedy else self._draw(edited)
        self._num_sampled += 1
        if self._history is not None:
            self._history.add(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id, None, [])
        return _with_logprobs(edited, token_id, self._params.logprobs)

    def _edited(self, values: Tensor) -> Tensor:
        """Logits (V,) after bias, penalties and the min_tokens mask; `values` itself when none applies."""
        if len(self._bias_ids):
            values = values.index_add(0, self._bias_ids, self._bias_values)
        if self._history is not None:
            values = self._history.penalize(values, self._params)
        if self._num_sampled < self._params.min_tokens and len(self._stop_ids):
            values = values.index_fill(0, self._stop_ids, -math.inf)
        return values

    def _draw(self, values: Tensor) -> int:
        """Draw from the filtered distribution: one uniform number, looked up in the cumulated probabilities."""
        ids, weights = _candidates(values, self._params)
        cumulated = weights.cumsum(0, dtype=torch.float64)
        point = torch.rand((), dtype=torch.float64, generator=self._generator) * cumulated[-1]
        # The product may round up to the total, which lies past the last candidate.
        position = min(int(torch.searchsorted(cumulated, point, right=True)), len(ids) - 1)
        return int(ids[position])


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities (V,) fp32 from which a token is drawn: temperature -> top_k -> top_p -> min_p.

    `logits` is (V,). Temperature 0 gives all probability to the largest logit, the lowest id on ties.

    Raises:
        ModelError: the logits hold NaN or +inf, or nothing but -inf.
    """
    values = _real_logits(logits, len(logits))
    best = _argmax(values)
    probabilities = torch.zeros_like(values)
    if params.greedy:
        probabilities[best] = 1.0
        return probabilities
    ids, weights = _candidates(values, params)
    return probabilities.index_copy(0, ids, (weights / weights.sum(dtype=torch.float64)).float())


class _History:
    """The distinct tokens of prompt and answer, and how often each is in the answer; grows by one per token."""

    def __init__(self, prompt_token_ids: Sequence[int], vocab_size: int) -> None:
        prompt = [token_id for token_id in dict.fromkeys(prompt_token_ids) if token_id < vocab_size]
        self._slots = {token_id: slot for slot, token_id in enumerate(prompt)}
        self._ids = torch.tensor(prompt, dtype=torch.int64)
        self._counts = torch.zeros(len(prompt))

    def add(self, token_id: int) -> None:
        """Count one token of the answer."""
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            spare = 64 + slot  # room doubles, so that adding stays cheap
            self._ids = torch.cat([self._ids, torch.zeros(spare, dtype=torch.int64)])
            self._counts = torch.cat([self._counts, torch.zeros(spare)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    def penalize(self, values: Tensor, params: SamplingParams) -> Tensor:
        """Logits (V,) with the three penalties applied to the tokens seen so far."""
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        seen = values[ids]
        penalty = params.repetition_penalty
        seen = torch.where(seen > 0, seen / penalty, seen * penalty)
        seen = seen - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        return values.index_copy(0, ids, seen)


def _candidates(values: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids (K,) that pass the filters, in any order, and their weights (K,): probabilities up to a factor.

    top_k looks at the logits before temperature, which does not change their order and would only round them.
    Tokens equal to the k-th stay, as in transformers. Weights are float32, but every sum over them is float64:
    in float32 the sum over a whole vocabulary can be off by more than a token's share.
    """
    if 0 < params.top_k < len(values):
        ids = _at_least_kth(values, params.top_k)
        kept = values[ids]
    else:
        ids = torch.arange(len(values))
        kept = values
    # Subtracting the maximum first keeps small temperatures from overflowing; below `tiny`, 0 / 0 would be NaN.
    divisor = max(params.temperature, torch.finfo(torch.float32).tiny)
    weights = torch.exp((kept - kept.max()) / divisor)
    if params.top_p < 1.0:
        nucleus = _nucleus(kept, weights, params.top_p)
        ids, weights = ids[nucleus], weights[nucleus]
    if params.min_p > 0.0:
        likely = weights >= params.min_p * weights.max()
        ids, weights = ids[likely], weights[likely]
    return ids, weights


def _nucleus(values: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """Positions (K,) of the smallest set of most probable tokens whose probability reaches `top_p`.

    As in transformers, probabilities are summed from the least probable token up, and those whose sum stays
    within 1 - top_p go. Among equal tokens the lower ids go first (transformers leaves that to an unstable sort).
    The most probable one always stays.
    """
    total = float(weights.sum(dtype=torch.float64))
    spare = (1.0 - top_p) * total
    if len(values) > NUCLEUS_GUESS:
        head = _at_least_kth(values, NUCLEUS_GUESS)
        tail = total - float(weights[head].sum(dtype=torch.float64))
        if tail <= spare:
            return head[_above(values[head], weights[head], spare - tail)]
    return _above(values, weights, spare)


def _above(values: Tensor, weights: Tensor, spare: float) -> Tensor:
    """Positions of what stays when the least probable tokens, with at most `spare` weight in all, go."""
    order = values.sort(stable=True).indices
    stays = weights[order].cumsum(0, dtype=torch.float64) > spare
    stays[-1] = True
    return order[stays]


def _at_least_kth(values: Tensor, k: int) -> Tensor:
    """Positions, ascending, of all values that are at least the k-th largest: k of them, more when tied."""
    array = values.numpy()  # NumPy selects and compares two to ten times faster than torch here
    cut = max(len(array) - k, 0)
    return torch.from_numpy(np.flatnonzero(array >= np.partition(array, cut)[cut]))


def _argmax(values: Tensor) -> int:
    """Position of the largest value, the lowest on ties: numpy promises that, torch.argmax does not.

    NumPy's argmax also stops at the first NaN, so one look at the winner tells whether all is well.
    """
    array = values.numpy()
    best = int(array.argmax())
    if not math.isfinite(array[best]):
        raise ModelError(
            f"the logits are not finite: the largest is {array[best]}",
            where=f"token id {best}",
            hint="try dtype=float32; if it stays, check the file with: qwill verify MODEL",
        )
    return best


def _with_logprobs(values: Tensor, token_id: int, count: int) -> Sampled:
    """The chosen token's log probability and rank, and those of the `count` most probable ones."""
    logprobs = torch.log_softmax(values, dim=0)
    top: list[tuple[int, float, int]] = []
    if count > 0:
        ids = _at_least_kth(values, count)
        order = ids[values[ids].sort(descending=True, stable=True).indices][:count]
        top = [(int(i), float(logprobs[i]), rank) for rank, i in enumerate(order, start=1)]
    logprob = float(logprobs[token_id])
    if all(i != token_id for i, _, _ in top):
        top.append((token_id, logprob, _rank(values, token_id)))
    return Sampled(token_id, logprob, top)


def _rank(values: Tensor, token_id: int) -> int:
    """Rank from 1; among equal logits the lower id comes first."""
    chosen = values[token_id]
    return 1 + int((values > chosen).sum()) + int((values[:token_id] == chosen).sum())


def _real_logits(logits: Tensor, vocab_size: int) -> Tensor:
    """(vocab_size,) fp32 on the CPU: the rows of real tokens, without the padding after them."""
    if logits.ndim != 1 or len(logits) < vocab_size:
        raise ModelError(f"logits of shape {tuple(logits.shape)} cannot hold {vocab_size} tokens")
    return logits[:vocab_size].detach().to("cpu", torch.float32)


def _generator(seed: int | None, index: int) -> torch.Generator:
    start = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    return torch.Generator().manual_seed((start + index) % 2**64)


def _has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _ending_ids(params: SamplingParams, eos_token_ids: frozenset[int], vocab_size: int) -> set[int]:
    """Ids that would end the answer; with ignore_eos the model's own do not."""
    eos = frozenset() if params.ignore_eos else eos_token_ids
    return {token_id for token_id in eos if token_id < vocab_size} | set(params.stop_token_ids)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if token_id >= vocab_size:
            raise SettingError(
                f"{name}: token id {token_id} is outside the vocabulary", hint=f"allowed: 0 … {vocab_size - 1}"
            )
