"""Attention: what each head of each layer looks at, and what the rotation does to its scores.

Query heads that share a key head (grouped-query attention, arXiv:2305.13245) stand side by side. Layers are worked out
one after another, when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qwill.errors import CapacityError, SettingError
from qwill.tracing import Trace
from qwill.views.attention_numbers import KINDS, STRONGEST, TracedAttention, packed, small_maps, strongest, summaries
from qwill.views.attention_parts import AttentionHead, AttentionLayer, levels_of, show_levels
from qwill.views.see_through import SeeThrough
from qwill.views.token_texts import token_text
from qwill.views.view import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Attention", "attention"]

THUMB = 32
"""Squares on a side of a head's picture in the overview."""

MOST_TOKENS = 8192
"""Longer texts are refused: one layer's weights would take gigabytes."""


def attention(seen: Trace, *, request_id: str | None = None) -> Attention:
    """Attention of one request that was traced with `attention=True`.

    Raises:
        SettingError: attention was not kept; there is no such request, or not exactly one.
        CapacityError: it was too much to keep, or the text is too long.
    """
    request = seen.request(request_id)
    request.queries(0)  # tells at once where nothing was kept
    ids = request.token_ids
    if len(ids) > MOST_TOKENS:
        raise CapacityError(f"attention of {len(ids)} tokens is too much for a picture", hint=f"at most {MOST_TOKENS}")
    tokenizer = seen.llm.tokenizer
    return Attention(request, seen.config, tuple(token_text(tokenizer, token_id) for token_id in ids))


@dataclass(frozen=True)
class Attention(TracedAttention, SeeThrough):
    """Attention of all heads of all layers. `layer(l)` and `head(l, h)` are larger pictures of a part.

    `data()`, for N tokens of which the last T were computed, and G = N up to 128 tokens, else 64:
        num_layers, num_heads, num_kv_heads   query head h uses key head h // (num_heads // num_kv_heads)
        num_tokens     N
        first          N - T: position of the first query; the ones before came from the prefix cache
        texts          [N] the tokens' visible texts
        grid           G
        maps           per layer base64(zlib(uint8 (Hq, G, G))): round(255 · √w), rows are queries, columns are keys.
                       A square is the largest weight of its places: i covers floor(i N / G) … ceil((i + 1) N / G) - 1
        top.k          8
        top.layers     per layer base64(zlib(uint16 (Hq, T, k) positions, then uint8 (Hq, T, k) round(255 · √w))),
                       little-endian, strongest first; zeros fill up where a query has fewer keys. √w is off by 1/510
                       at most, so w by 0.004 · √w
        summary        [layer][head] {"entropy" (bits), "first_token", "previous_token", "distance" (tokens), "kind"}:
                       averages over the queries from position 1 on; kind is null or a key of `kinds`
        kinds          {name: the rule by which a head is called so}
        qk.position    the query: the last token of the prompt, or the first that was computed after it
        qk.layers      per layer base64(zlib(float16 (2, Hq, position + 1))): q·k / √D with the keys 0 … position,
                       before the rotation and after it (relative error 1/2048); softmax of the latter is the attention
    """

    title = "Attention of all heads"
    caption = (
        "A row of pictures is a layer, a picture is a head; heads of one block share their keys and values. In each, "
        "a row is a token that looks, a column one that is looked at; the root of the weight is drawn. "
        "S: sink head, P: previous-token head (half of the weight or more)."
    )

    def layer(self, layer: int) -> AttentionLayer:
        """All heads of one layer.

        Raises:
            SettingError: there is no such layer.
        """
        self.request.queries(layer)
        return AttentionLayer(self, layer)

    def head(self, layer: int, head: int, position: int | None = None) -> AttentionHead:
        """One head, with the strongest keys of one query; without a position, see `position`.

        Raises:
            SettingError: there is no such layer or head, or the position was not computed.
        """
        self.request.queries(layer)
        if not 0 <= head < self.config.num_heads:
            raise SettingError(
                f"head = {head}: there is no such head", hint=f"allowed: 0 … {self.config.num_heads - 1}"
            )
        return AttentionHead(self, layer, head, self.position(position))

    def data(self) -> dict[str, Any]:
        """See the class."""
        maps, tops, summary, products = [], [], [], []
        for layer in range(self.config.num_layers):
            weights = self.weights(layer)
            maps.append(packed(small_maps(weights, self.grid)))
            tops.append(_packed_strongest(weights))
            summary.append([head.data() for head in summaries(weights)])
            products.append(packed(torch.stack(self.scores(layer)).clamp(-65504, 65504).half()))
        return {
            "num_layers": self.config.num_layers,
            "num_heads": self.config.num_heads,
            "num_kv_heads": self.config.num_kv_heads,
            "num_tokens": len(self.texts),
            "first": self.request.first,
            "texts": list(self.texts),
            "grid": self.grid,
            "maps": maps,
            "top": {"k": STRONGEST, "layers": tops},
            "summary": summary,
            "kinds": KINDS,
            "qk": {"position": self.position(None), "layers": products},
        }

    def figure(self) -> Figure:
        """See `View.figure`: every head of every layer as a small picture."""
        layers, heads = self.config.num_layers, self.config.num_heads
        size = min(THUMB, len(self.texts))
        inch = min(max(min(6.5 / heads, 14 / layers), 0.2), 0.7)
        per_group = self.config.heads_per_kv
        lefts = [(size + 3) * head + 8 * (head // per_group) for head in range(heads)]
        tops = [(size + 3) * layer for layer in range(layers)]
        canvas = np.full((tops[-1] + size, lefts[-1] + size), np.nan)
        scale = inch / (size + 3)
        figure = new_figure(canvas.shape[1] * scale + 1.2, canvas.shape[0] * scale + 0.9)
        axes = figure.subplots()
        for layer, top in enumerate(tops):
            weights = self.weights(layer)
            maps = levels_of(small_maps(weights, size))
            for head, (left, summary) in enumerate(zip(lefts, summaries(weights), strict=True)):
                canvas[top : top + size, left : left + size] = maps[head]
                if summary.kind:
                    letter, place = summary.kind[0].upper(), (left + 0.95 * size, top + 0.05 * size)
                    letters = axes.text(*place, letter, ha="right", va="top", fontsize=14 * inch, weight="bold")
                    letters.set_in_layout(False)
        show_levels(axes, canvas)
        middle = (size - 1) / 2
        axes.set_yticks([top + middle for top in tops], [str(layer) for layer in range(layers)])
        axes.set_xticks([left + middle for left in lefts], [_head_label(head, per_group) for head in range(heads)])
        axes.tick_params(length=0, labelsize=7, labeltop=True)
        axes.set(xlabel="query head, and below the key-value head of its block", ylabel="layer")
        axes.spines[:].set_visible(False)
        return figure


def _packed_strongest(weights: Tensor) -> str:
    places, found = strongest(weights, STRONGEST)
    return packed(places.to(torch.uint16), found.sqrt().mul(255).round().to(torch.uint8))


def _head_label(head: int, per_group: int) -> str:
    """The head's number, and below the first of each block its key-value head."""
    return f"{head}\nKV {head // per_group}" if head % per_group == 0 else str(head)
