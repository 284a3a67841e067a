"""Probabilities: how likely each token of a text was, what else could have come, and what then would have followed.

The numbers come from the logits that a trace's own residual stream gives, so they are those of the request itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams
from qwill.tracing import RequestTrace, Trace
from qwill.views.distributions import chunks, distribution, significant
from qwill.views.lettering import drawable, lettering, shorten, write
from qwill.views.markup import STYLE, escape, percent, shade
from qwill.views.token_texts import token_text
from qwill.views.view import View, new_figure
from qwill.views.what_if import Change, WhatIf, what_ifs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Alternative", "Position", "Probabilities", "probabilities"]

ROW_POSITIONS = 32
"""Positions in a row of the drawing."""
MOST_POSITIONS = 512
"""The drawing shows so many, the last ones."""
BLUE, PALE, ORANGE = "#0072B2", "#9ECAE1", "#D55E00"
POINTS: dict[str, Any] = {"color": ORANGE, "marker": "o", "markersize": 3, "linewidth": 0.7}


@dataclass(frozen=True)
class Alternative:
    """A token that could have come, and how probable it was."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class Position:
    """One token of the text, and the distribution that it came from.

    Everything but `sampling_probability` is of the model alone: softmax over the tokenizer's tokens, at temperature 1,
    without bias and penalties. It is None for the first token, which nothing predicts, and for tokens that were in the
    prefix cache.

    Attributes:
        position: its place in the text, from 0.
        id: its number in the vocabulary.
        text: its visible text.
        probability: how probable the model found it, 0 … 1.
        logprob: natural logarithm of that.
        rank: 1 for the most probable token; among equals the lower id comes first.
        entropy: how uncertain the model was before it, in bits.
        sampling_probability: of a token of the answer: the probability with which the sampler took it, after bias,
            penalties, masks, temperature, top_k, top_p and min_p.
        top: the most probable tokens in its place.
    """

    position: int
    id: int
    text: str
    probability: float | None = None
    logprob: float | None = None
    rank: int | None = None
    entropy: float | None = None
    sampling_probability: float | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Probabilities(View):
    """How probable each token of a request was. `what_if` asks what would have come after another token.

    `data()` has the attributes of each `Position`, and of each `WhatIf` that `with_what_ifs` added.
    """

    positions: tuple[Position, ...]
    num_prompt_tokens: int
    what_ifs: tuple[WhatIf, ...] = ()
    trace: Trace | None = field(default=None, repr=False, compare=False)
    request_id: str = ""

    title = "Probabilities"
    caption = (
        "Under each token: how probable the model found it in this place; the bluer, the more probable. "
        "#3: two others were more probable."
    )

    def most_uncertain(self, count: int = 5) -> list[int]:
        """The positions of the answer before which the model was least certain (highest entropy), in that order."""
        answer = [p for p in self.positions[self.num_prompt_tokens :] if p.entropy is not None]
        answer.sort(key=lambda p: -(p.entropy or 0.0))
        return [p.position for p in answer[:count]]

    def others(self, position: int, count: int = 2) -> list[int]:
        """The ids of the most probable tokens that could have come in this place instead."""
        here = self.positions[position]
        return [other.id for other in here.top if other.id != here.id][:count]

    def what_if(
        self,
        position: int,
        token: int | str | None = None,
        *,
        params: SamplingParams | None = None,
        max_tokens: int = 16,
    ) -> WhatIf:
        """What the model would write after another token: the text before `position`, then `token`, then `max_tokens`.

        `token` is an id or a text; None lets the model choose again. See `qwill.views.what_if.what_ifs`, also for the
        errors.
        """
        return self._asked([(position, token)], params, max_tokens)[0]

    def with_what_ifs(
        self, changes: Sequence[Change], *, params: SamplingParams | None = None, max_tokens: int = 16
    ) -> Probabilities:
        """The same picture, which also shows what would have come after each of these (position, token): all are
        computed together. See `what_if`.
        """
        added = self._asked(changes, params, max_tokens)
        return dataclasses.replace(self, what_ifs=(*self.what_ifs, *added))

    def data(self) -> dict[str, Any]:
        """See `View.data`. Numbers have six significant digits."""
        return {
            "positions": [_position_data(position) for position in self.positions],
            "what_if": [what_if.data() for what_if in self.what_ifs],
        }

    def _repr_html_(self) -> str:
        """See `View._repr_html_`."""
        pieces = [STYLE]
        for name, ours in (("prompt", self._prompt()), ("answer", self._answer())):
            if ours:
                pieces.append(f'<div class="qv-part">{name}</div>')
                pieces.append(f'<div class="qv-flow">{"".join(map(_chip, ours))}</div>')
        if self.what_ifs:
            pieces.append('<div class="qv-part">what if</div>' + "".join(w.html() for w in self.what_ifs))
        pieces.append("<details><summary>all numbers, and what else could have come</summary>")
        pieces.append(_table(self.positions) + "</details>")
        return self._framed("".join(pieces))

    def figure(self) -> Figure:
        """See `View.figure`. Bars: probability; points: entropy. Hatched: the prompt."""
        shown = self.positions[-MOST_POSITIONS:]
        rows = [shown[i : i + ROW_POSITIONS] for i in range(0, len(shown), ROW_POSITIONS)]
        most = max([p.entropy for p in shown if p.entropy is not None], default=0.0)
        figure = new_figure(11, 1.9 * len(rows) + 0.4)
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        for axes, row in zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True):
            _draw_row(axes, row, self.num_prompt_tokens, max(most, 1.0))
        keys = [Patch(facecolor=PALE, hatch="///", edgecolor="white"), Patch(color=BLUE), Line2D([], [], **POINTS)]
        names = ["prompt", "answer", "entropy before it; #3: rank"]
        figure.legend(keys, names, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
        return figure

    def _asked(self, changes: Sequence[Change], params: SamplingParams | None, max_tokens: int) -> list[WhatIf]:
        if self.trace is None:
            raise SettingError("this picture has no model to ask", hint="take it from probabilities(trace)")
        return what_ifs(self.trace, changes, request_id=self.request_id, params=params, max_tokens=max_tokens)

    def _prompt(self) -> tuple[Position, ...]:
        return self.positions[: self.num_prompt_tokens]

    def _answer(self) -> tuple[Position, ...]:
        return self.positions[self.num_prompt_tokens :]


def probabilities(trace: Trace, *, request_id: str | None = None, top: int = 5) -> Probabilities:
    """How probable each token of a traced request was, prompt and answer, with the `top` alternatives to each.

    The trace must keep residuals: trace(llm, residuals=True). To look at a text only, let it be continued by one token.

    Raises:
        SettingError: residuals were not kept; the trace has not that one request; top is negative.
        UsageError: the LLM was closed.
    """
    if top < 0:
        raise SettingError(f"top = {top} is negative")
    request = trace.request(request_id)
    ids = request.request.tokens(0, len(request.token_ids) + 1)
    reader = _Reader(trace, request, top)
    stream = request.residuals[-1][: len(ids) - request.first - 1]  # (R, C)
    found = [reader.unknown(position, ids[position]) for position in range(min(request.first + 1, len(ids)))]
    for rows in chunks(len(stream), trace.config.vocab_size):
        found += reader.measured(stream[rows], len(found), ids[len(found) :])
    return Probabilities(tuple(found), request.num_prompt_tokens, trace=trace, request_id=request.request_id)


class _Reader:
    """Makes positions of rows of the residual stream, in order."""

    def __init__(self, trace: Trace, request: RequestTrace, top: int) -> None:
        self._trace, self._request, self._top = trace, request, top
        self._tokenizer = trace.llm.tokenizer
        self._vocab_size = self._tokenizer.vocab_size
        self._sampler = trace.new_sampler(request.request_id)

    def unknown(self, position: int, token_id: int) -> Position:
        """A position whose logits nobody saw."""
        if position >= self._request.num_prompt_tokens:
            self._sampler.accept(token_id)
        return Position(position, token_id, token_text(self._tokenizer, token_id))

    def measured(self, stream: Tensor, start: int, ids: Sequence[int]) -> list[Position]:
        """The positions from `start` on, whose tokens are `ids`, predicted by rows of the stream (R, C)."""
        logits = self._trace.logits(stream)[:, : self._vocab_size]  # (R, V): no ids without a token
        return [self._position(start + i, ids[i], row) for i, row in enumerate(logits)]

    def _position(self, position: int, token_id: int, logits: Tensor) -> Position:
        real = token_id < len(logits)
        told = distribution(logits.numpy(), token_id if real else 0, self._top)
        sampled = None
        if position >= self._request.num_prompt_tokens:
            sampled = float(self._sampler.probabilities(logits)[token_id])
            self._sampler.accept(token_id)
        return Position(
            position=position,
            id=token_id,
            text=token_text(self._tokenizer, token_id),
            probability=math.exp(told.logprob) if real else None,
            logprob=told.logprob if real else None,
            rank=told.rank if real else None,
            entropy=told.entropy,
            sampling_probability=sampled,
            top=tuple(Alternative(i, token_text(self._tokenizer, i), p) for i, p in told.top),
        )


def _position_data(position: Position) -> dict[str, Any]:
    numbers = ("probability", "logprob", "rank", "entropy", "sampling_probability")
    values = {name: getattr(position, name) for name in numbers}
    return {
        "position": position.position,
        "id": position.id,
        "text": position.text,
        **{name: significant(v) if isinstance(v, float) else v for name, v in values.items()},
        "top": [{"id": o.id, "text": o.text, "probability": significant(o.probability)} for o in position.top],
    }


def _chip(position: Position) -> str:
    if position.probability is None:
        return f'<span class="qv-chip"><span class="qv-text">{escape(position.text)}</span><span>–</span></span>'
    rank = f" #{position.rank}" if position.rank != 1 else ""
    return (
        f'<span class="qv-chip" style="{shade(position.probability)}" title="position {position.position}">'
        f'<span class="qv-text">{escape(position.text)}</span>'
        f'<span class="qv-small">{percent(position.probability)}{rank}</span></span>'
    )


def _table(positions: Sequence[Position]) -> str:
    heads = ("position", "token", "id", "probability", "logprob", "rank", "entropy", "as sampled", "most probable")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<table class="qv"><tr>{head}</tr>{"".join(map(_row, positions))}</table>'


def _row(position: Position) -> str:
    def number(value: float | None, form: str) -> str:
        return f'<td class="qv-num">{"–" if value is None else format(value, form)}</td>'

    others = ", ".join(
        f'<span class="qv-text">{escape(o.text)}</span> <span class="qv-small">{percent(o.probability)}</span>'
        for o in position.top
    )
    return (
        f'<tr><td class="qv-num">{position.position}</td><td class="qv-text">{escape(position.text)}</td>'
        f'<td class="qv-num">{position.id}</td>{number(position.probability, ".4g")}{number(position.logprob, ".3f")}'
        f"{number(position.rank, 'd')}{number(position.entropy, '.2f')}"
        f"{number(position.sampling_probability, '.4g')}<td>{others}</td></tr>"
    )


def _rank(rank: int | None) -> str:
    """A rank other than the first one in at most five letters: #3, #14k."""
    if rank is None or rank == 1:
        return ""
    return f"#{rank}" if rank < 1000 else f"#{rank // 1000}k"


def _draw_row(axes: Axes, row: Sequence[Position], num_prompt_tokens: int, most_bits: float) -> None:
    """One row of the drawing: bars of probability, points of entropy on an axis of its own at the right."""
    known = [(i, p, p.probability) for i, p in enumerate(row) if p.probability is not None]
    for i, position, share in known:
        prompt = position.position < num_prompt_tokens
        axes.bar(i, share, color=PALE if prompt else BLUE, hatch="///" if prompt else "", edgecolor="white")
        rank = _rank(position.rank)
        write(axes, i, share + 0.02, rank, ha="center", va="bottom", fontsize=6)
    axes.set(xlim=(-0.7, ROW_POSITIONS - 0.3), ylim=(0, 1.12), ylabel="probability")
    axes.set_xticks(range(len(row)))
    axes.set_xticklabels([drawable(shorten(p.text, 12)) for p in row], rotation=90, fontsize=8, **lettering())
    bits = axes.twinx()
    points = [(i, p.entropy) for i, p in enumerate(row) if p.entropy is not None]
    bits.plot([i for i, _ in points], [e for _, e in points], **POINTS)
    bits.set(ylim=(0, 1.12 * most_bits))
    bits.set_ylabel("entropy (bits)", color=ORANGE)
