"""Numbers of attention weights: small maps, the strongest keys, what a head does on average, and scores of one query.

Works on the tensors of one layer. Knows no picture and no text.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qwill.config import ModelConfig
from qwill.errors import SettingError
from qwill.models.layers import inverse_frequencies
from qwill.tracing import RequestTrace

__all__ = [
    "KINDS",
    "STRONGEST",
    "HeadSummary",
    "TracedAttention",
    "packed",
    "scores",
    "small_maps",
    "strongest",
    "summaries",
]

WHOLE = 128
"""Up to so many tokens a map has a square for each."""

GRID = 64
"""Squares on a side of the map of a longer text."""

STRONGEST = 8
"""Keys of each query that are listed."""

KIND_SHARE = 0.5
"""Average weight from which on a head is named after what it looks at."""

KIND_QUERIES = 8
"""With fewer queries than this, no head is named."""

KINDS = {
    "previous-token head": f"on average at least {KIND_SHARE:.0%} of its weight is on the token just before",
    "sink head": f"on average at least {KIND_SHARE:.0%} of its weight is on the first token, a place to rest",
}
"""What a head may be called -> the rule for it, over all queries from position 1 on, of which there are 8 or more."""


@dataclass(frozen=True)
class HeadSummary:
    """What a head does on average, over the queries from position 1 on (position 0 sees itself only).

    Attributes:
        entropy: −Σ w log2 w, in bits: 0 for one key, log2(n) for n keys alike.
        first_token: weight on position 0.
        previous_token: weight on the token just before.
        distance: mean of w × (query − key), in tokens.
        kind: a key of `KINDS`, or None.
    """

    entropy: float
    first_token: float
    previous_token: float
    distance: float
    kind: str | None

    def data(self) -> dict[str, Any]:
        """The attributes by name, to four digits."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class TracedAttention:
    """Attention of one traced request, layer by layer as it is asked for.

    Attributes:
        texts: (N,) visible text of each token.
    """

    request: RequestTrace
    config: ModelConfig
    texts: tuple[str, ...]

    @property
    def grid(self) -> int:
        """Squares on a side of a map in the data."""
        return len(self.texts) if len(self.texts) <= WHOLE else GRID

    def weights(self, layer: int) -> Tensor:
        """Attention weights (Hq, T, N), fp32; see `RequestTrace.attention`."""
        return self.request.attention(layer)

    def summary(self, layer: int) -> list[HeadSummary]:
        """What each head of a layer does on average."""
        return summaries(self.weights(layer))

    def scores(self, layer: int, position: int | None = None) -> tuple[Tensor, Tensor]:
        """q·k / √D of one query with the keys 0 … position, before and after the rotation: twice (Hq, position + 1).

        Without a position, see `position`.

        Raises:
            SettingError: there is no such layer, or the position was not computed.
        """
        return scores(self.request, self.config, layer, self.position(position))

    def position(self, wanted: int | None) -> int:
        """A query's position; without a wish, the last one of the prompt, or the first that was computed after it.

        Raises:
            SettingError: it was not computed.
        """
        first, last = self.request.first, len(self.texts) - 1
        if wanted is None:
            return max(first, min(self.request.num_prompt_tokens - 1, last))
        if not first <= wanted <= last:
            raise SettingError(f"position = {wanted} was not computed here", hint=f"allowed: {first} … {last}")
        return wanted


def summaries(weights: Tensor) -> list[HeadSummary]:
    """weights (Hq, T, N), of the last T of N positions -> a summary of each head."""
    _, queries, keys = weights.shape
    first = keys - queries
    skipped = 1 if first == 0 and queries > 1 else 0
    w = weights[:, skipped:]
    positions = torch.arange(first + skipped, keys)
    entropy = torch.special.entr(w).sum(-1).mean(-1) / math.log(2)  # (Hq,)
    previous = w[:, torch.arange(len(positions)), (positions - 1).clamp(min=0)]  # (Hq, T')
    previous = torch.where(positions > 0, previous, 0.0).mean(-1)
    looked_at = w @ torch.arange(keys, dtype=w.dtype)  # (Hq, T'): the mean key
    distance = (positions - looked_at).clamp(min=0).mean(-1)
    columns = [column.tolist() for column in (entropy, w[:, :, 0].mean(-1), previous, distance)]
    return [
        HeadSummary(bits, on_first, on_previous, far, _kind(on_first, on_previous, len(positions)))
        for bits, on_first, on_previous, far in zip(*columns, strict=True)
    ]


def _kind(first_token: float, previous_token: float, queries: int) -> str | None:
    if queries < KIND_QUERIES or max(first_token, previous_token) < KIND_SHARE:
        return None
    return "previous-token head" if previous_token >= first_token else "sink head"


def small_maps(weights: Tensor, size: int) -> Tensor:
    """weights (Hq, T, N) -> uint8 (Hq, size, size): round(255 · √w) over all N × N places, 0 where no query was seen.

    Of several weights that share a square, the largest: square i covers floor(i N / size) … ceil((i + 1) N / size).
    The root lets small weights be seen; w differs from (value / 255)² by less than 0.004 · √w + 0.000004.
    """
    whole = F.pad(weights, (0, 0, weights.shape[2] - weights.shape[1], 0))  # (Hq, N, N)
    if size < whole.shape[1]:
        whole = F.adaptive_max_pool2d(whole, size)
    return _rooted(whole)


def _rooted(weights: Tensor) -> Tensor:
    return weights.sqrt().mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def strongest(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """weights (Hq, T, N) -> positions (Hq, T, count) int64 and weights (Hq, T, count) of the keys with most weight.

    Strongest first. Where a query may look at fewer keys, weights of 0 at position 0 follow.
    """
    _, queries, keys = weights.shape
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
    found = weights.masked_fill(later, -1.0).topk(min(count, keys), dim=-1)
    places = torch.where(found.values < 0, 0, found.indices)
    missing = (0, count - places.shape[-1])
    return F.pad(places, missing), F.pad(found.values.clamp(min=0), missing)


def scores(request: RequestTrace, config: ModelConfig, layer: int, position: int) -> tuple[Tensor, Tensor]:
    """What one query and each of the keys 0 … position have in common: q·k / √D, before and after the rotation.

    Two tensors (Hq, position + 1), fp32. The softmax of the second is the query's attention. Keys that came from the
    prefix cache were not seen before their rotation; they are turned back.
    """
    query = position - request.first
    plain, rotated = request.queries(layer, rotated=False)[query], request.queries(layer)[query]  # (Hq, D) (Hq, D)
    keys = request.keys(layer)[: position + 1]  # (position + 1, Hkv, D)
    cached = _turned_back(keys[: request.first], config)
    before = torch.cat((cached, request.keys(layer, rotated=False)))[: position + 1]
    return _products(plain, before), _products(rotated, keys)


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q (Hq, D), k (N, Hkv, D) -> (Hq, N)."""
    k = k.transpose(0, 1).repeat_interleave(len(q) // k.shape[1], dim=0)  # (Hq, N, D)
    return (k @ q[:, :, None])[:, :, 0] / math.sqrt(q.shape[1])


def _turned_back(keys: Tensor, config: ModelConfig) -> Tensor:
    """Keys (N, Hkv, D) of the positions 0 … N - 1 as they were before the rotation."""
    inv_freq = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    amplitude = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
    angles = torch.arange(len(keys), dtype=torch.float64)[:, None, None] * inv_freq.double()  # (N, 1, D / 2)
    cos, sin = angles.cos().float(), angles.sin().float()
    x, y = keys.chunk(2, dim=-1)
    return torch.cat((x * cos + y * sin, y * cos - x * sin), dim=-1) / amplitude


def packed(*tensors: Tensor) -> str:
    """The bytes of some tensors one after the other, little-endian, as base64 of a zlib stream."""
    data = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")
