"""Weights: the spread of every tensor's values, and what its number format in memory has cost.

The checkpoint is read again beside the model in memory, a sample of evenly spaced rows of a tensor at a time. So memory
stays small and the whole takes seconds; what share was looked at is part of the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qwill.checkpoint_names import expected_tensors, match_tensors
from qwill.checkpoint_values import half_split_order, values_of_rows
from qwill.errors import SettingError, WeightsError
from qwill.formats import Checkpoint, TensorInfo, open_checkpoint
from qwill.quantization import PANEL_ROWS, PackedPart, PackedWeight, unpacked_rows
from qwill.views.markup import STYLE, escape
from qwill.views.see_through import BLACK, WHITE, SeeThrough
from qwill.views.view import new_figure
from qwill.weights import Target, parameter_targets, rotated_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qwill.config import ModelConfig
    from qwill.engine import Engine
    from qwill.llm import LLM

__all__ = ["TensorStatistics", "WeightTensor", "Weights", "weights"]

SAMPLE = 1 << 18
"""Values of a tensor that are looked at, at most; a few more where whole rows or heads are needed."""

STRIPS = 16
"""In so many strips of rows, evenly spaced, the sample is taken."""

BINS = 64
"""Intervals of a histogram."""


@dataclass(frozen=True)
class TensorStatistics:
    """One tensor of the checkpoint. Numbers are of the checkpoint's own values, in float64, of the rows looked at.

    Attributes:
        name: as in a Hugging Face checkpoint.
        stored: its type in the file.
        format: its format in memory: a name of `qwill.quantization.FORMATS`, or a float type.
        nbytes: bytes in memory, scales and padding included.
        edges: (65,) ends of the histogram's intervals, evenly spaced from min to max.
        counts: (64,) values in each interval.
        relative_rms: ‖w − ŵ‖ / ‖w‖, w as in the checkpoint and ŵ as in memory.
        max_error: the largest |w − ŵ|.
        sampled: share of its rows that was looked at; 1 for all.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    format: str
    nbytes: int
    mean: float
    std: float
    min: float
    max: float
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    relative_rms: float
    max_error: float
    sampled: float

    @property
    def bits_per_weight(self) -> float:
        """Bits in memory that one value takes, with its share of scales and padding."""
        return 8 * self.nbytes / math.prod(self.shape)

    def data(self) -> dict[str, Any]:
        """As `Weights` describes it."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "stored": self.stored,
            "format": self.format,
            "nbytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
            "mean": self.mean,
            "std": self.std,
            "min": self.min,
            "max": self.max,
            "histogram": {"edges": self.edges.tolist(), "counts": self.counts.tolist()},
            "error": {"relative_rms": self.relative_rms, "max": self.max_error},
            "sampled": self.sampled,
        }


def weights(llm: LLM) -> Weights:
    """Statistics of every tensor of a loaded model, from its checkpoint and its memory. A tied lm_head is not counted
    again.

    Raises:
        UsageError: the LLM was closed.
        WeightsError: the checkpoint is no longer the one that was loaded.
        FormatError, ModelNotFoundError: the checkpoint can no longer be read.
    """
    targets = parameter_targets(llm.config)

    def in_memory(engine: Engine) -> dict[str, Tensor | PackedWeight]:
        paths = {target.parameter for target in targets.values()}
        owners = {path: engine.runner.model.get_submodule(path.rpartition(".")[0]) for path in paths}
        return {path: getattr(owner, path.rpartition(".")[2]) for path, owner in owners.items()}

    parameters = llm.service.between_steps(in_memory)
    with open_checkpoint(llm.path) as checkpoint, ThreadPoolExecutor(max_workers=2) as pool:
        found = _found(checkpoint, llm.config)

        def look(name: str) -> TensorStatistics:
            held = _Held.of(parameters[targets[name].parameter], targets[name])
            heads = rotated_heads(checkpoint, llm.config, name)
            statistics = _statistics(name, held, _sample(checkpoint, found[name], held, heads), found[name])
            checkpoint.release(found[name].name)
            return statistics

        return Weights(llm.name, tuple(pool.map(look, targets)))


def _found(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, TensorInfo]:
    match = match_tensors(checkpoint, config)
    if match.missing or match.wrong_shape:
        raise WeightsError("the checkpoint is no longer the one that was loaded", where=str(checkpoint.path))
    return {name: match.found[name] for name in expected_tensors(config)}


@dataclass(frozen=True)
class _Held:
    """One checkpoint tensor in memory: a packed part of its own, or rows of a plain tensor."""

    rows: Tensor | PackedPart
    columns: int

    @classmethod
    def of(cls, parameter: Tensor | PackedWeight, target: Target) -> _Held:
        if isinstance(parameter, Tensor):
            return cls(parameter[target.start : target.start + target.rows], parameter[0].numel())
        starts = np.cumsum([0, *(part.rows for part in parameter.parts)]).tolist()
        return cls(parameter.parts[starts.index(target.start)], parameter.columns)

    @property
    def format(self) -> str:
        if isinstance(self.rows, Tensor):
            return str(self.rows.dtype).removeprefix("torch.")
        return self.rows.format.name

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes if isinstance(self.rows, Tensor) else self.rows.data.nbytes

    def values(self, start: int, stop: int) -> Tensor:
        if isinstance(self.rows, Tensor):
            return self.rows[start:stop].float().cpu()
        return unpacked_rows(self.rows, self.columns, start, stop)


def _sample(checkpoint: Checkpoint, info: TensorInfo, held: _Held, heads: int | None) -> tuple[Tensor, Tensor, int]:
    """Values of some rows as in the checkpoint and as in memory, float64 and flat, and how many rows they are."""
    pairs = []
    rows = 0
    for start, stop in _strips(info.shape[0], held.columns, heads or PANEL_ROWS):
        stored = values_of_rows(checkpoint, info, start, stop)
        if heads is not None:
            stored = stored[half_split_order(stop - start, heads)]
        pairs.append((stored.double().flatten(), held.values(start, stop).double().flatten()))
        rows += stop - start
    stored, remembered = (torch.cat(side) for side in zip(*pairs, strict=True))
    return stored, remembered, rows


def _strips(rows: int, columns: int, unit: int) -> Iterator[tuple[int, int]]:
    """Where the rows of a sample begin and end: all of them, or evenly spaced strips of whole units."""
    wanted = SAMPLE // columns
    if rows <= wanted:
        yield 0, rows
        return
    size = max(wanted // STRIPS // unit, 1) * unit
    count = max(min(wanted // size, STRIPS), 1)
    for number in range(count):
        start = (rows - size) * number // max(count - 1, 1) // unit * unit
        yield start, min(start + size, rows)


def _statistics(name: str, held: _Held, sample: tuple[Tensor, Tensor, int], info: TensorInfo) -> TensorStatistics:
    stored, remembered, rows = sample
    low, high = float(stored.min()), float(stored.max())
    counts, edges = np.histogram(stored.numpy(), BINS, (low, high))
    difference = remembered - stored
    size = float(stored.norm())
    return TensorStatistics(
        name=name,
        shape=info.shape,
        stored=info.dtype,
        format=held.format,
        nbytes=held.nbytes,
        mean=float(stored.mean()),
        std=float(stored.std(correction=0)),
        min=low,
        max=high,
        edges=edges,
        counts=counts,
        relative_rms=float(difference.norm()) / size if size else 0.0,
        max_error=float(difference.abs().max()),
        sampled=rows / info.shape[0],
    )


@dataclass(frozen=True)
class Weights(SeeThrough):
    """Every tensor of a model. `tensor(name)` is a larger picture of one.

    `data()`: {"model", "tensors": [...]}, in the order of the model, each with
        name, shape       of the checkpoint's tensor
        stored            its type in the file: "BF16", "Q4_K", …
        format            its format in memory: "int8", "uint4_super", "float32", …
        nbytes            bytes in memory, scales and padding included
        bits_per_weight   8 · nbytes / values
        mean, std, min, max, histogram {"edges" [65], "counts" [64]}     of the checkpoint's own values
        error             {"relative_rms": ‖w − ŵ‖ / ‖w‖, "max": the largest |w − ŵ|}, w as in the checkpoint and ŵ as
                          in memory; both are exactly 0 where the format in memory holds the stored values without loss
        sampled           share of the tensor's rows that the numbers are of; 1 for all
    """

    model: str
    tensors: tuple[TensorStatistics, ...]

    title = "Weights"
    caption = (
        "Each tensor as the checkpoint has it, and what its number format in memory changed: the root mean square of "
        "the difference, as a share of the values' own; 0 means to the bit as in the file. Of large tensors, evenly "
        "spaced rows were looked at."
    )

    def tensor(self, name: str) -> WeightTensor:
        """One tensor, by its name in a Hugging Face checkpoint.

        Raises:
            SettingError: there is no such tensor.
        """
        found = [tensor for tensor in self.tensors if tensor.name == name]
        if not found:
            raise SettingError(f"there is no tensor {name!r:.100}", hint=f"there is {self.tensors[0].name!r}, …")
        return WeightTensor(found[0])

    def data(self) -> dict[str, Any]:
        """See the class."""
        return {"model": self.model, "tensors": [tensor.data() for tensor in self.tensors]}

    def _repr_html_(self) -> str:
        """The drawing and, for each kind of tensor, a line of a table."""
        kinds: dict[str, list[TensorStatistics]] = {}
        for tensor in self.tensors:
            kinds.setdefault(re.sub(r"^model\.(layers\.\d+\.)?", "", tensor.name), []).append(tensor)
        heads = ("tensor", "how many", "in the file", "in memory", "MB", "bits a weight", "std", "error (rms)")
        lines = [_line(kind, tensors) for kind, tensors in kinds.items()]
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
        head = "".join(f"<th>{name}</th>" for name in heads)
        return self._framed(f'{STYLE}{self.drawing()}<table class="qv"><tr>{head}</tr>{rows}</table>')

    def figure(self) -> Figure:
        """See `View.figure`: bits, spread and error of every matrix, by layer."""
        matrices = [tensor for tensor in self.tensors if len(tensor.shape) == 2]
        rows = list(dict.fromkeys(_module(tensor) for tensor in matrices))
        layers = 1 + max(_layer(tensor) or 0 for tensor in matrices)
        shown = {title: number for title, number in MEASURES.items() if any(map(number, matrices))}
        figure = new_figure(2 + 0.3 * max(layers, 12), 0.7 + len(shown) * (0.2 * len(rows) + 0.5))
        for axes, (title, number) in zip(figure.subplots(len(shown), 1), shown.items(), strict=True):
            values = np.full((len(rows), layers), np.nan)
            for tensor in matrices:
                layer = _layer(tensor)
                values[rows.index(_module(tensor)), slice(None) if layer is None else layer] = number(tensor)
            _draw_table(axes, values, [row for row, name in enumerate(rows) if name in ("embed_tokens", "lm_head")])
            axes.set_yticks(range(len(rows)), rows, fontsize=7)
            axes.set_title(title, fontsize=9, loc="left")
        same = "" if any(tensor.relative_rms for tensor in matrices) else "; every matrix is to the bit as in the file"
        axes.set_xlabel(f"layer{same}", fontsize=8)
        return figure


def _line(kind: str, tensors: list[TensorStatistics]) -> list[str]:
    """What the tensors of one kind have in common, as the cells of a row."""
    nbytes = sum(tensor.nbytes for tensor in tensors)
    values = sum(math.prod(tensor.shape) for tensor in tensors)
    return [
        kind,
        str(len(tensors)),
        ", ".join(sorted({tensor.stored for tensor in tensors})),
        ", ".join(sorted({tensor.format for tensor in tensors})),
        f"{nbytes / 1e6:.3g}",
        f"{8 * nbytes / values:.3g}",
        _range([tensor.std for tensor in tensors], "{:.2g}"),
        _range([tensor.relative_rms for tensor in tensors], "{:.2%}"),
    ]


def _range(values: list[float], form: str) -> str:
    low, high = (form.format(value) if value else "0" for value in (min(values), max(values)))
    return low if low == high else f"{low} … {high}"


MEASURES: dict[str, Callable[[TensorStatistics], float]] = {
    "bits per weight in memory": lambda tensor: tensor.bits_per_weight,
    "standard deviation of the values": lambda tensor: tensor.std,
    "error in memory, in % of the values (root mean square)": lambda tensor: 100 * tensor.relative_rms,
}
"""What the picture of all tensors shows; what is 0 for all of them is left out."""


def _draw_table(axes: Axes, values: npt.NDArray[np.float64], whole_rows: list[int]) -> None:
    """Numbers as coloured squares with the number in each; a row without layers is one bar with one number."""
    most = float(np.nanmax(values)) or 1.0
    axes.imshow(values, cmap="viridis", aspect="auto", vmin=0, vmax=most)
    for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
        if row in whole_rows and column:
            continue
        value = values[row, column]
        text = f"{value:#.2g}" if 0 < value < 9.95 else f"{value:.0f}"
        ink = BLACK if value > 0.6 * most else WHITE
        letters = axes.text(column, row, text.replace("0.", ".", 1), ha="center", va="center", fontsize=6, color=ink)
        letters.set_in_layout(False)  # inside its square anyway; laying out hundreds takes seconds
    axes.tick_params(labelsize=7, length=2)


@dataclass(frozen=True)
class WeightTensor(SeeThrough):
    """One tensor: `data()` is its entry in `Weights`."""

    statistics: TensorStatistics

    @property
    def title(self) -> str:  # type: ignore[override]
        """Its name."""
        return self.statistics.name

    @property
    def caption(self) -> str:  # type: ignore[override]
        """Its numbers."""
        one = self.statistics
        shape = " × ".join(map(str, one.shape))
        return (
            f"{shape}, {one.stored} in the file, {one.format} in memory: {one.bits_per_weight:.3g} bits a weight, "
            f"error {one.relative_rms:.3%}. Mean {one.mean:.3g}, standard deviation {one.std:.3g}, "
            f"from {one.min:.3g} to {one.max:.3g}; {one.sampled:.0%} of the rows were looked at."
        )

    def data(self) -> dict[str, Any]:
        """See the class."""
        return self.statistics.data()

    def figure(self) -> Figure:
        """See `View.figure`: the histogram."""
        one = self.statistics
        figure = new_figure(7, 3)
        axes = figure.subplots()
        axes.stairs(one.counts, one.edges, fill=True, color="#0072B2")
        axes.set(yscale="log", xlabel="value", ylabel="how many", title=one.name)
        return figure


def _layer(tensor: TensorStatistics) -> int | None:
    found = re.match(r"model\.layers\.(\d+)\.", tensor.name)
    return int(found[1]) if found else None


def _module(tensor: TensorStatistics) -> str:
    return tensor.name.split(".")[-2]
