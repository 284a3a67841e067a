"""Rotary positions: how fast each pair of a head's numbers turns, and what distance alone does to a score.

RoPE (arXiv:2104.09864) turns pair i of every query and key by position × inv_freq[i]. Everything here follows from the
configuration; no weight and no text is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qwill.config import ModelConfig
from qwill.errors import SettingError
from qwill.models.layers import inverse_frequencies
from qwill.views.see_through import SeeThrough
from qwill.views.view import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Rotary", "rotary"]

COLUMNS = 512
"""Positions that the picture of the angles shows at most; of a longer text, evenly spaced ones."""


MOST = 1 << 17
"""Positions that are worked out at most."""


def rotary(config: ModelConfig, positions: int = 512) -> Rotary:
    """The angles of a model's queries and keys at the first `positions` positions.

    Raises:
        SettingError: positions is not 1 … 131,072.
    """
    if not 1 <= positions <= MOST:
        raise SettingError(f"positions = {positions} is outside 1 … {MOST}")
    return Rotary(config, positions)


@dataclass(frozen=True)
class Rotary(SeeThrough):
    """How fast each pair turns, its angle over the positions, and the likeness that is left at each distance.

    `data()`, with P = D / 2 pairs:
        head_dim       D
        theta          the base of the frequencies
        scaling        null, or {"kind": "yarn" | "llama3" | "linear", "factor", "trained": positions before stretching}
        amplitude      factor of every cosine and sine (YaRN's attention factor); 1 without it
        inv_freq       [P] radians per position, scaling included
        wavelengths    [P] positions for one full turn: 2 π / inv_freq
        positions      how many are shown
        context        positions that the model is made for
        similarity     [positions] for each distance d: mean over the pairs of cos(d · inv_freq)
    """

    config: ModelConfig
    positions: int
    title: str = "Rotary positions"
    caption: str = (
        "Each pair of a head's numbers is turned by position × its own speed, in queries and in keys; so a score feels "
        "only the distance. Fast pairs tell neighbours apart, slow ones carry over the whole text."
    )

    @property
    def inv_freq(self) -> Tensor:
        """Radians per position of each pair, fp32 (D / 2,), as the model uses them."""
        return inverse_frequencies(self.config.head_dim, self.config.rope_theta, self.config.rope_scaling)

    def angles(self) -> Tensor:
        """Angle of each pair at each position, in radians, not reduced: float64 (D / 2, positions)."""
        return self.inv_freq.double()[:, None] * torch.arange(self.positions, dtype=torch.float64)

    def similarity(self) -> Tensor:
        """What the rotation leaves of the likeness of two equal vectors at each distance: float64 (positions,).

        Of a vector whose pairs are all of one length: the mean over the pairs of cos(distance · inv_freq).
        """
        return torch.cos(self.angles()).mean(0)

    def data(self) -> dict[str, Any]:
        """See the class."""
        scaling = self.config.rope_scaling
        stretched = scaling and {
            "kind": scaling.kind,
            "factor": scaling.factor,
            "trained": scaling.original_max_position_embeddings,
        }
        return {
            "head_dim": self.config.head_dim,
            "theta": self.config.rope_theta,
            "scaling": stretched,
            "amplitude": scaling.attention_factor if scaling else 1.0,
            "inv_freq": self.inv_freq.tolist(),
            "wavelengths": (2 * math.pi / self.inv_freq.double()).tolist(),
            "positions": self.positions,
            "context": self.config.max_position_embeddings,
            "similarity": [round(value, 6) for value in self.similarity().tolist()],
        }

    def figure(self) -> Figure:
        """See `View.figure`: cosines of all angles, the wavelengths, and the likeness over the distance."""
        figure = new_figure(9, 6.4)
        grid = figure.add_gridspec(2, 2, height_ratios=[1.15, 1])
        self._draw_cosines(figure.add_subplot(grid[0, :]))
        self._draw_wavelengths(figure.add_subplot(grid[1, 0]))
        self._draw_similarity(figure.add_subplot(grid[1, 1]))
        return figure

    def _draw_cosines(self, axes: Axes) -> None:
        shown = torch.linspace(0, self.positions - 1, min(self.positions, COLUMNS), dtype=torch.float64).round()
        cosines = torch.cos(self.inv_freq.double()[:, None] * shown).numpy()
        pairs = len(cosines)
        extent = (-0.5, self.positions - 0.5, pairs - 0.5, -0.5)
        image = axes.imshow(
            cosines, cmap="cividis", vmin=-1, vmax=1, aspect="auto", interpolation="none", extent=extent
        )
        axes.set(xlabel="position", ylabel="pair (fastest first)", title="cosine of the angle")
        axes.figure.colorbar(image, ax=axes, ticks=[-1, 0, 1], pad=0.01)

    def _draw_wavelengths(self, axes: Axes) -> None:
        waves = 2 * math.pi / self.inv_freq.double().numpy()
        axes.semilogy(range(len(waves)), waves, "o", markersize=3, color="#0072B2")
        context = self.config.max_position_embeddings
        for length, text, style in ((self.positions, "shown here", ":"), (context, "the model's context", "--")):
            axes.axhline(length, color="#D55E00", linestyle=style, linewidth=1)
            axes.annotate(f"{length:,}: {text}", (0, length), (2, 3), textcoords="offset points", fontsize=8)
        axes.set(xlabel="pair", ylabel="positions", title="positions for one full turn")
        axes.grid(alpha=0.3)

    def _draw_similarity(self, axes: Axes) -> None:
        axes.plot(self.similarity().numpy(), linewidth=1.2, color="#0072B2")
        axes.axhline(0, color="0.5", linewidth=0.8)
        axes.set(xlabel="distance in tokens", ylabel="mean cosine of all pairs", title="likeness of two equal vectors")
        axes.grid(alpha=0.3)
