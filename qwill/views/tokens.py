"""Tokens: what a text is made of for a model, with ids and bytes. Knows no model, only its tokenizer."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from qwill.errors import SettingError
from qwill.llm import LLM
from qwill.tokenizer import Tokenizer
from qwill.tracing import Trace
from qwill.views.lettering import drawable, shorten, width, write
from qwill.views.markup import STYLE, escape
from qwill.views.token_texts import NO_TOKEN, group_starts, is_partial, printable, token_bytes
from qwill.views.view import View, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Token", "Tokens", "tokens"]

ROW_LETTERS = 96
"""Letters in a row of the drawing."""
MOST_LETTERS = 24
"""The drawing cuts longer tokens."""
ORANGE, GREEN, GREY = "#D55E00", "#009E73", "#777777"


@dataclass(frozen=True)
class Token:
    """One token of a text.

    Attributes:
        position: its place in the text, from 0.
        id: its number in the vocabulary.
        text: its visible text; see `qwill.views.token_texts.printable`.
        data: its bytes; none for an id that stands for nothing.
        special: whether it is one of the tokenizer's added tokens, such as <|im_end|>.
        partial: whether its bytes begin or end inside a character.
        part: where it comes from.
        group: position of the first token of its group: the tokens that a character spans.
        character: visible text of the whole group, where it has several tokens.
    """

    position: int
    id: int
    text: str
    data: bytes
    special: bool
    partial: bool
    part: Literal["prompt", "answer"]
    group: int
    character: str | None


@dataclass(frozen=True)
class Tokens(View):
    """The tokens of a text. `data()` has for each one, besides the attributes of `Token`, its bytes as hexadecimal
    digits under "bytes".
    """

    tokens: tuple[Token, ...]

    title = "Tokens"
    caption = (
        "Each box is a token: its text, its id, its bytes. Dashed: a special token. A frame around several: "
        "only together are they a character."
    )

    def data(self) -> dict[str, Any]:
        """See `View.data`."""
        return {
            "tokens": [
                {
                    "position": token.position,
                    "id": token.id,
                    "text": token.text,
                    "bytes": token.data.hex(),
                    "special": token.special,
                    "partial": token.partial,
                    "part": token.part,
                    "group": token.group,
                    "character": token.character,
                }
                for token in self.tokens
            ]
        }

    def _repr_html_(self) -> str:
        """See `View._repr_html_`."""
        pieces = [STYLE]
        for part, ours in self._parts():
            count = sum(map(len, ours))
            pieces.append(f'<div class="qv-part">{part} · {count} token{"s" * (count != 1)}</div>')
            pieces.append(f'<div class="qv-flow">{"".join(map(_group_html, ours))}</div>')
        return self._framed("".join(pieces))

    def figure(self) -> Figure:
        """See `View.figure`."""
        rows: list[tuple[str, list[list[Token]]]] = []
        for part, groups in self._parts():
            left = 0.0
            for group in groups:
                size = sum(_chip_width(token) for token in group) + 1
                if left < size:
                    rows.append((part if left == 0 else "", []))
                    left = ROW_LETTERS
                rows[-1][1].append(group)
                left -= size
        figure = new_figure(10.5, 0.3 + 0.72 * len(rows))
        axes = figure.subplots()
        axes.set(xlim=(-8, ROW_LETTERS + 2), ylim=(len(rows), 0))
        axes.axis("off")
        for number, (part, row) in enumerate(rows):
            write(axes, -8, number + 0.5, part, va="center", fontsize=8, color=GREY)
            x = 0.0
            for group in row:
                x = _draw_group(axes, x, number, group)
        return figure

    def _parts(self) -> Iterator[tuple[str, list[list[Token]]]]:
        """Prompt and answer, each as its groups of tokens."""
        for part, ours in itertools.groupby(self.tokens, key=lambda token: token.part):
            yield part, [list(group) for _, group in itertools.groupby(ours, key=lambda token: token.group)]


def tokens(
    source: Trace | LLM | Tokenizer,
    text: str | Sequence[int] | None = None,
    *,
    request_id: str | None = None,
    num_prompt_tokens: int | None = None,
    parse_special: bool = False,
) -> Tokens:
    """The tokens of a traced request, prompt and answer; or of a text, given as such or as token ids.

    A trace of several requests needs `request_id`. Of ids, the first `num_prompt_tokens` are called the prompt, by
    default all. In a text, special tokens are looked for only with `parse_special`.

    Raises:
        SettingError: a text is given for a trace, or none without one; the trace has not that one request.
        PromptError: the text cannot be encoded.
    """
    if isinstance(source, Trace):
        if text is not None:
            raise SettingError("a trace has its texts already", hint="tokens(trace), or tokens(llm, text)")
        request = source.request(request_id)
        known = request.request.tokens(0, len(request.token_ids) + 1)
        return Tokens(_listed(source.llm.tokenizer, known, request.num_prompt_tokens))
    if text is None:
        raise SettingError("no text is given", hint='tokens(llm, "text"), or tokens(trace)')
    tokenizer = source.tokenizer if isinstance(source, LLM) else source
    ids = (
        tokenizer.encode(text, parse_special=parse_special)
        if isinstance(text, str)
        else list(map(operator.index, text))
    )
    return Tokens(_listed(tokenizer, ids, len(ids) if num_prompt_tokens is None else num_prompt_tokens))


def _listed(tokenizer: Tokenizer, ids: Sequence[int], num_prompt_tokens: int) -> tuple[Token, ...]:
    special = set(tokenizer.special_tokens.values())
    pieces = [token_bytes(tokenizer, token_id) for token_id in ids]
    starts = group_starts(pieces)
    sizes = Counter(starts)
    wholes: dict[int, bytes] = {}
    for start, piece in zip(starts, pieces, strict=True):
        wholes[start] = wholes.get(start, b"") + piece
    return tuple(
        Token(
            position=position,
            id=token_id,
            text=printable(piece) or NO_TOKEN,
            data=piece,
            special=token_id in special,
            partial=is_partial(piece),
            part="prompt" if position < num_prompt_tokens else "answer",
            group=start,
            character=printable(wholes[start]) if sizes[start] > 1 else None,
        )
        for position, (token_id, piece, start) in enumerate(zip(ids, pieces, starts, strict=True))
    )


def _group_html(group: list[Token]) -> str:
    chips = "".join(map(_chip_html, group))
    if group[0].character is None:
        return chips
    return (
        f'<span class="qv-group"><span class="qv-row">{chips}</span>'
        f'<span>= <span class="qv-text">{escape(group[0].character)}</span></span></span>'
    )


def _chip_html(token: Token) -> str:
    kind = " qv-special" if token.special else ""
    note = '<span class="qv-small">special</span>' if token.special else ""
    return (
        f'<span class="qv-chip{kind}" title="position {token.position}"><span class="qv-text">{escape(token.text)}'
        f'</span><span class="qv-small">{token.id}</span>'
        f'<span class="qv-small qv-mono">{_hex(token.data, 16)}</span>{note}</span>'
    )


def _hex(data: bytes, most: int) -> str:
    return data[:most].hex(" ") + " …" * (len(data) > most)


def _chip_width(token: Token) -> float:
    text = drawable(shorten(token.text, MOST_LETTERS))
    return max(width(text), 0.75 * len(str(token.id)), 0.65 * len(_hex(token.data, 8)), 3) + 1.2


def _draw_group(axes: Axes, x: float, row: int, group: list[Token]) -> float:
    """Draw the tokens of a group side by side. Returns where the next one begins."""
    from matplotlib.patches import Rectangle

    left = x
    for token in group:
        size = _chip_width(token)
        colour, line = (GREEN, "--") if token.special else (GREY, "-")
        axes.add_patch(Rectangle((x, row + 0.14), size - 0.4, 0.68, fill=False, edgecolor=colour, linestyle=line))
        middle = x + size / 2 - 0.2
        write(axes, middle, row + 0.3, shorten(token.text, MOST_LETTERS), ha="center", va="center", fontsize=9)
        write(axes, middle, row + 0.52, str(token.id), ha="center", va="center", fontsize=6.5)
        write(axes, middle, row + 0.7, _hex(token.data, 8), ha="center", va="center", fontsize=5.5)
        x += size
    if group[0].character is not None:
        frame = Rectangle((left - 0.3, row + 0.08), x - left + 0.2, 0.8, fill=False, edgecolor=ORANGE, linewidth=1.6)
        axes.add_patch(frame)
        label = "= " + shorten(group[0].character, MOST_LETTERS)
        write(axes, (left + x) / 2, row + 0.02, label, ha="center", va="center", fontsize=7, color=ORANGE)
    return x + 0.6
