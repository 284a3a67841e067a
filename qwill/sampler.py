"""Sampler: the logits of one request's last position in, its next token id out.

Knows token ids only: no text, no model, no batch. Each request owns one `Sampler`, with its own random
generator and its own counts of past tokens, so what a request gets never depends on its neighbours.

The order is Hugging Face's and vLLM's:
ids past the vocabulary cut off -> logit_bias -> repetition penalty -> presence and frequency penalty
-> what the grammar does not allow, and stop tokens until min_tokens, masked -> (log probabilities are reported from
here) -> temperature -> top_k -> top_p -> min_p -> draw.
A token that must come, </think> at the end of the thinking budget, comes whatever the rest says.

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
from numpy.typing import NDArray
from torch import Tensor

from qwill.drawing import NEVER, Floats, Ids, at_least_kth, candidates, exp, position
from qwill.errors import ModelError, SettingError
from qwill.grammar import Matcher
from qwill.sampling_params import SamplingParams
from qwill.thinking import Thinking

__all__ = ["Sampled", "Sampler", "distribution"]

Bits = NDArray[np.uint8]

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
        self.accept(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id, None, [])
        return _with_logprobs(edited, edited[best], token_id, self._params.logprobs)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities (vocab_size,) fp32 from which `sample` would draw now, after everything; changes nothing.

        Raises:
            ModelError, SettingError: see `sample`.
        """
        values = _real_logits(logits, self._vocab_size)
        _argmax(values)
        if self._thinking is not None and self._thinking.forced is not None:
            forced = torch.zeros(self._vocab_size)
            forced[self._thinking.forced] = 1.0
            return forced
        return distribution(torch.from_numpy(self._edited(values)), self._params)

    def _take_forced(self, token_id: int) -> Sampled:
        """The one token that may come. It takes a number from the generator like any other."""
        if not self._params.greedy:
            self._uniform()
        self.accept(token_id)
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

    def accept(self, token_id: int) -> None:
        """The answer goes on with this token, whoever chose it; `sample` does this by itself."""
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
        ids, weights = candidates(values, peak, self._params)
        chosen = position(weights, self._uniform())
        return chosen if ids is None else int(ids[chosen])

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
        ids, weights = candidates(values, values[best], params)
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
    log_total = float(peak) + math.log(exp(values - peak).sum(dtype=np.float64))
    top: list[tuple[int, float, int]] = []
    if count > 0:
        ids = at_least_kth(values, count)
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
