"""Logit lens: what the model would say if it stopped after each layer (nostalgebraist, 2020, "interpreting GPT: the
logit lens"). The final norm and the head are applied to the residual stream between the layers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qwill.errors import SettingError
from qwill.tracing import Trace
from qwill.views.distributions import chunks, distribution, significant
from qwill.views.lettering import drawable, lettering, shorten, write
from qwill.views.markup import STYLE, escape, percent, shade
from qwill.views.token_texts import token_text
from qwill.views.view import View, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "LogitLens", "logit_lens"]

MOST_POSITIONS = 64
"""Looked at by default, the last ones."""
DRAWN_POSITIONS = 16
"""The drawing shows so many, the last ones."""


@dataclass(frozen=True)
class Cell:
    """What one layer would say after one token.

    Attributes:
        top: (id, visible text, probability) of its most probable tokens, the first of which it would say.
        entropy: in bits.
        rank_of_final: rank that it gives to what the last layer says; 1 where they agree.
        probability_of_final: probability that it gives to that.
    """

    top: tuple[tuple[int, str, float], ...]
    entropy: float
    rank_of_final: int
    probability_of_final: float


@dataclass(frozen=True)
class LogitLens(View):
    """`cells[layer][i]` is what layer 0 (the embeddings) … L would say after the token at `positions[i]`; the last row
    is what the model says. Probabilities are a softmax over the tokenizer's tokens at temperature 1.

    `data()` also has the token that did follow each position, as "next", and each cell's "top" and
    "probability_of_final".
    """

    positions: tuple[int, ...]
    texts: tuple[str, ...]
    next: tuple[str | None, ...]
    cells: tuple[tuple[Cell, ...], ...]

    title = "Logit lens"
    caption = (
        "Each row: what the model would say next if it stopped after this layer; the bluer, the surer. The last row is "
        "what it does say; where a layer agrees with it, the text is bold."
    )

    def data(self) -> dict[str, Any]:
        """See `View.data`. Numbers have six significant digits."""
        return {
            "layers": list(range(len(self.cells))),
            "positions": list(self.positions),
            "texts": list(self.texts),
            "next": list(self.next),
            "cells": [[_cell_data(cell) for cell in row] for row in self.cells],
        }

    def _repr_html_(self) -> str:
        """See `View._repr_html_`."""
        heads = "".join(
            f'<th><span class="qv-small">{position}</span><br><span class="qv-text">{escape(text)}</span></th>'
            for position, text in zip(self.positions, self.texts, strict=True)
        )
        rows = [
            f'<tr><th class="qv-num">{layer or "embeddings"}</th>{"".join(map(_cell_html, row))}</tr>'
            for layer, row in enumerate(self.cells)
        ]
        return self._framed(f'{STYLE}<table class="qv"><tr><th>after layer</th>{heads}</tr>{"".join(rows)}</table>')

    def figure(self) -> Figure:
        """See `View.figure`. It shows the last 16 positions."""
        rows = [row[-DRAWN_POSITIONS:] for row in self.cells]
        columns, layers = len(rows[0]), len(rows)
        figure = new_figure(1.6 + 0.85 * columns, 1.2 + 0.24 * layers)
        axes = figure.subplots()
        shares = [[cell.top[0][2] for cell in row] for row in rows]
        image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="upper")
        for layer, row in enumerate(rows):
            for i, cell in enumerate(row):
                _, text, share = cell.top[0]
                style = {"color": "black" if share > 0.5 else "white", "fontsize": 7}
                weight = "bold" if cell.rank_of_final == 1 else "normal"
                write(axes, i, layer, shorten(drawable(text), 10), ha="center", va="center", weight=weight, **style)
        axes.set_yticks(range(layers))
        axes.set_yticklabels(["embeddings", *map(str, range(1, layers))], fontsize=7)
        axes.set_ylabel("after layer")
        axes.set_xticks(range(columns))
        shown = [drawable(shorten(text, 12)) for text in self.texts[-columns:]]
        axes.set_xticklabels(shown, rotation=90, fontsize=8, **lettering())
        axes.xaxis.tick_top()
        if columns < len(self.positions):
            axes.set_xlabel(f"the last {columns} of {len(self.positions)} positions", fontsize=8)
        figure.colorbar(image, ax=axes, label="probability", fraction=0.03, pad=0.01)
        return figure


def logit_lens(
    trace: Trace, *, request_id: str | None = None, positions: Sequence[int] | None = None, top: int = 5
) -> LogitLens:
    """What each layer would say after some tokens of a traced request, by default the last 64 that were computed.

    The trace must keep residuals: trace(llm, residuals=True).

    Raises:
        SettingError: residuals were not kept; the trace has not that one request; no position, or one that was
            not computed; top < 1.
        UsageError: the LLM was closed.
    """
    if top < 1:
        raise SettingError(f"top = {top}", hint="at least 1: the token that a layer would say")
    request = trace.request(request_id)
    tokenizer, first = trace.llm.tokenizer, request.first
    ids = request.request.tokens(0, len(request.token_ids) + 1)
    stop = len(request.token_ids)
    wanted = range(max(first, stop - MOST_POSITIONS), stop) if positions is None else positions
    chosen = list(map(operator.index, wanted))  # numpy's numbers too; they would be no JSON
    if not chosen:
        raise SettingError("no position is given", hint=f"allowed: {first} … {stop - 1}")
    for position in chosen:
        if not first <= position < stop:
            raise SettingError(f"position = {position} was not computed", hint=f"allowed: {first} … {stop - 1}")
    stream = request.residuals[:, [position - first for position in chosen]]  # (L + 1, P, C)
    last = list(_cells(trace, stream[-1], None, top))
    final = [cell.top[0][0] for cell in last]
    cells = [*(tuple(_cells(trace, layer, final, top)) for layer in stream[:-1]), tuple(last)]
    return LogitLens(
        positions=tuple(chosen),
        texts=tuple(token_text(tokenizer, ids[position]) for position in chosen),
        next=tuple(token_text(tokenizer, ids[p + 1]) if p + 1 < len(ids) else None for p in chosen),
        cells=tuple(cells),
    )


def _cells(trace: Trace, stream: Tensor, final: list[int] | None, top: int) -> Iterator[Cell]:
    """One layer's cells, from its rows of the residual stream (P, C) and what the last layer says: itself for None."""
    tokenizer = trace.llm.tokenizer
    for rows in chunks(len(stream), trace.config.vocab_size):
        logits = trace.logits(stream[rows])[:, : tokenizer.vocab_size].numpy()  # (R, V): no ids without a token
        says = logits.argmax(1).tolist() if final is None else final[rows]
        for row, token_id in zip(logits, says, strict=True):
            told = distribution(row, token_id, top)
            words = tuple((i, token_text(tokenizer, i), share) for i, share in told.top)
            yield Cell(words, told.entropy, told.rank, math.exp(told.logprob))


def _cell_data(cell: Cell) -> dict[str, Any]:
    token_id, text, share = cell.top[0]
    return {
        "id": token_id,
        "text": text,
        "probability": significant(share),
        "entropy": significant(cell.entropy),
        "rank_of_final": cell.rank_of_final,
        "probability_of_final": significant(cell.probability_of_final),
        "top": [{"id": i, "text": word, "probability": significant(p)} for i, word, p in cell.top],
    }


def _cell_html(cell: Cell) -> str:
    _, text, share = cell.top[0]
    name = "b" if cell.rank_of_final == 1 else "span"
    return (
        f'<td style="{shade(share)}" title="entropy {cell.entropy:.2f} bits"><{name} class="qv-text">{escape(text)}'
        f'</{name}> <span class="qv-small">{percent(share)}</span></td>'
    )
