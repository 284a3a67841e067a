"""The text of a token as people can see it: nothing invisible, nothing that changes the text around it.

Tokens come from prompts and from what a model writes, so they may be anything: half a character, a line feed, a mark
that turns the direction of writing. Knows no HTML and no picture.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from qwill.errors import PromptError
from qwill.tokenizer import Tokenizer

__all__ = ["NO_TOKEN", "group_starts", "is_partial", "printable", "token_bytes", "token_text"]

NO_TOKEN = "<no token>"
"""Shown for an id that stands for nothing: a model's vocabulary may be larger than its tokenizer's."""

PICTURES = {" ": "·", "\n": "↵", "\t": "⇥"}
"""Not Unicode's own pictures of control characters (␊): few fonts have them."""

INVISIBLE = [
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
]
"""Characters that show nothing though their category says that they would: fillers and selectors of variants."""


def printable(data: bytes) -> str:
    """Bytes as visible text: characters as they are, but a space as ·, a line feed as ↵, a tab as ⇥, what else is
    invisible or turns the text by its number (<U+202E>), and a byte that is no character as <0xE4>.
    """
    text = data.decode("utf-8", "surrogateescape")
    shown = "".join(map(_visible, text))
    # A mark that goes on top of a letter has none at the start of a token.
    return "\u25cc" + shown if text and unicodedata.category(text[0]).startswith("M") and shown[0] == text[0] else shown


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes of a token; none for an id that stands for nothing."""
    try:
        return tokenizer.token_bytes(token_id)
    except PromptError:
        return b""


def token_text(tokenizer: Tokenizer, token_ids: int | Iterable[int]) -> str:
    """The visible text of a token, or of several together."""
    ids = [token_ids] if isinstance(token_ids, int) else token_ids
    pieces = [token_bytes(tokenizer, token_id) for token_id in ids]
    return printable(b"".join(pieces)) if all(pieces) else "".join(printable(piece) or NO_TOKEN for piece in pieces)


def is_partial(data: bytes) -> bool:
    """Whether a token's bytes begin or end inside a character, or form none."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def group_starts(pieces: Sequence[bytes]) -> list[int]:
    """For each token's bytes, the first token of its group: tokens are in one group when a character spans them."""
    inside: list[bool] = []  # for each byte, whether it goes on with a character
    for character in b"".join(pieces).decode("utf-8", "surrogateescape"):
        inside += [False, *[True] * (len(character.encode("utf-8", "surrogateescape")) - 1)]
    starts: list[int] = []
    at = 0
    for number, piece in enumerate(pieces):
        goes_on = bool(piece) and inside[at]
        starts.append(starts[-1] if goes_on else number)
        at += len(piece)
    return starts


def _visible(character: str) -> str:
    code = ord(character)
    if character in PICTURES:
        return PICTURES[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"<0x{code - 0xDC00:02X}>"
    category = unicodedata.category(character)
    if category[0] in "CZ" or any(first <= code <= last for first, last in INVISIBLE):
        return f"<U+{code:04X}>"
    return character
