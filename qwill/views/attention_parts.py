"""Attention of one layer, and of one head, in larger pictures. What they show is worked out by `attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from qwill.views.attention_numbers import (
    STRONGEST,
    HeadSummary,
    TracedAttention,
    packed,
    small_maps,
    strongest,
    summaries,
)
from qwill.views.lettering import drawable, lettering, shorten
from qwill.views.markup import STYLE, escape
from qwill.views.see_through import SeeThrough
from qwill.views.view import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AttentionHead", "AttentionLayer", "levels_of", "show_levels"]

SQUARES = 128
"""Squares on a side of a head's picture among those of its layer, at most."""

BLOCKS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours of frames: heads of one key-value head have the same (Okabe and Ito's, which everyone can tell apart)."""

LABELS = 48
"""Up to so many tokens a big map has their texts at its sides."""


@dataclass(frozen=True)
class AttentionLayer(SeeThrough):
    """All heads of one layer. `data()` has, besides "layer", `data()` of `Attention` for this layer alone: "texts",
    "grid", "map" (one of its "maps") and "summary" (one of its rows).
    """

    source: TracedAttention
    layer: int

    caption = (
        "A row is a token that looks, a column one that is looked at; the root of the weight is drawn. Heads of one "
        "KV head use the same keys and values, and differ in their queries."
    )

    @property
    def title(self) -> str:  # type: ignore[override]
        """With the layer's number."""
        return f"Attention of layer {self.layer}"

    def data(self) -> dict[str, Any]:
        """See the class."""
        weights = self.source.weights(self.layer)
        grid = self.source.grid
        return {
            "layer": self.layer,
            "texts": list(self.source.texts),
            "grid": grid,
            "map": packed(small_maps(weights, grid)),
            "summary": [head.data() for head in summaries(weights)],
        }

    def figure(self) -> Figure:
        """See `View.figure`."""
        config, weights = self.source.config, self.source.weights(self.layer)
        per_group, texts = config.heads_per_kv, self.source.texts
        columns = per_group * max(1, min(config.num_kv_heads, 7 // per_group))
        rows = -(-config.num_heads // columns)
        inch = min(1.65, 12 / columns)
        figure = new_figure(inch * columns, 1.25 * inch * rows)
        maps, sums = levels_of(small_maps(weights, min(len(texts), SQUARES))), summaries(weights)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for head, axes in enumerate(grid.flat):
            if head >= config.num_heads:
                axes.axis("off")
                continue
            show_levels(axes, maps[head], len(texts))
            axes.tick_params(labelsize=6, length=2, labelbottom=head + columns >= config.num_heads)
            axes.set_title(_head_title(head, per_group, sums[head]), fontsize=6)
            axes.spines[:].set(color=BLOCKS[head // per_group % len(BLOCKS)], linewidth=1.5)
        return figure


@dataclass(frozen=True)
class AttentionHead(SeeThrough):
    """One head, and the keys that one of its queries looks at most.

    `data()`: "layer", "head", "kv_head", "texts", "grid", "map" (base64(zlib(uint8 (G, G))) as in `Attention`),
    "summary", and of the query "position": "top" [{"position", "text", "weight"}] strongest first, "weights"
    [position + 1], and "before" and "after" [position + 1], its scores q·k / √D before and after the rotation.
    """

    source: TracedAttention
    layer: int
    number: int
    position: int

    caption = (
        "Left: a row is a token that looks, a column one that is looked at; the root of the weight is drawn. "
        "Right: the scores of one query with every key, before and after the rotation by position."
    )

    @property
    def title(self) -> str:  # type: ignore[override]
        """With the numbers of layer and head."""
        kv_head = self.number // self.source.config.heads_per_kv
        return f"Attention of layer {self.layer}, head {self.number} (KV head {kv_head})"

    def weights(self) -> Tensor:
        """Attention weights (T, N), fp32."""
        return self.source.weights(self.layer)[self.number]

    def top(self) -> list[tuple[int, float]]:
        """(position, weight) of the keys that the query looks at most, strongest first."""
        row = self.weights()[None, self.position - self.source.request.first, None, : self.position + 1]
        places, found = strongest(row, min(STRONGEST, self.position + 1))
        return list(zip(places.flatten().tolist(), found.flatten().tolist(), strict=True))

    def data(self) -> dict[str, Any]:
        """See the class."""
        weights = self.weights()
        grid = self.source.grid
        before, after = (side[self.number] for side in self.source.scores(self.layer, self.position))
        texts = self.source.texts
        return {
            "layer": self.layer,
            "head": self.number,
            "kv_head": self.number // self.source.config.heads_per_kv,
            "texts": list(texts),
            "grid": grid,
            "map": packed(small_maps(weights[None], grid)),
            "summary": summaries(weights[None])[0].data(),
            "position": self.position,
            "top": [{"position": place, "text": texts[place], "weight": weight} for place, weight in self.top()],
            "weights": weights[self.position - self.source.request.first, : self.position + 1].tolist(),
            "before": before.tolist(),
            "after": after.tolist(),
        }

    def figure(self) -> Figure:
        """See `View.figure`."""
        figure = new_figure(11, 5.6)
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        self._draw_map(left)
        self._draw_scores(right)
        return figure

    def _repr_html_(self) -> str:
        """The drawing and, as a table, the strongest keys."""
        texts = self.source.texts
        rows = "".join(
            f'<tr><td class="qv-num">{place}</td><td class="qv-text">{escape(texts[place])}</td>'
            f'<td class="qv-num">{weight:.1%}</td></tr>'
            for place, weight in self.top()
        )
        head = "<tr><th>position</th><th>token</th><th>weight</th></tr>"
        query = f"What position {self.position} {escape(texts[self.position])} looks at most"
        table = f'<table class="qv"><caption style="text-align:left">{query}</caption>{head}{rows}</table>'
        return self._framed(STYLE + self.drawing() + table)

    def _draw_map(self, axes: Axes) -> None:
        texts = self.source.texts
        levels = levels_of(small_maps(self.weights()[None], min(len(texts), 4 * SQUARES)))[0]
        show_levels(axes, levels, len(texts))
        axes.axhline(self.position, color="#D55E00", linewidth=0.7)
        axes.set(xlabel="is looked at", ylabel="looks")
        if len(texts) <= LABELS:
            labels = [drawable(shorten(text, 12)) for text in texts]
            axes.set_xticks(range(len(texts)), labels, rotation=90, fontsize=7, **lettering())
            axes.set_yticks(range(len(texts)), labels, fontsize=7, **lettering())

    def _draw_scores(self, axes: Axes) -> None:
        before, after = (side[self.number].numpy() for side in self.source.scores(self.layer, self.position))
        axes.plot(before, "--", linewidth=1, color="#E69F00", label="before the rotation")
        axes.plot(after, linewidth=1.2, color="#0072B2", label="after it (its softmax is the attention)")
        top, texts = self.top()[:3], self.source.texts
        axes.plot([place for place, _ in top], [after[place] for place, _ in top], "o", markersize=4, color="#0072B2")
        named = ", ".join(f"{place} {drawable(shorten(texts[place], 12))} {weight:.0%}" for place, weight in top)
        title = f"scores of position {self.position}; most weight (dots) on\n{named}"
        axes.set_title(title, fontsize=8, **lettering())
        axes.set(xlabel="key", ylabel="q·k / √D")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
        axes.grid(alpha=0.3)


def levels_of(maps: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Maps (Hq, G, G) as numbers 0 … 1; nothing above the diagonal, where no query may look."""
    levels = maps.double().numpy() / 255
    levels[:, np.triu_indices(maps.shape[1], 1)[0], np.triu_indices(maps.shape[1], 1)[1]] = np.nan
    return levels


def show_levels(axes: Axes, levels: Any, tokens: int | None = None) -> None:
    """Draw levels 0 … 1 as squares; with `tokens`, so that the axes count these, however many share a square."""
    extent = None if tokens is None else (-0.5, tokens - 0.5, tokens - 0.5, -0.5)
    axes.imshow(levels, cmap="viridis", vmin=0, vmax=1, interpolation="none", extent=extent)


def _head_title(head: int, per_group: int, summary: HeadSummary) -> str:
    numbers = f"first {summary.first_token:.0%}, before {summary.previous_token:.0%}, {summary.entropy:.1f} bits"
    name = f" · {summary.kind.removesuffix(' head')}" if summary.kind else ""
    return f"head {head} · KV {head // per_group}{name}\n{numbers}"
