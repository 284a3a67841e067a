"""Any text in a picture: letters that no font here has are written as their number. Knows no tokens.

matplotlib draws an empty box for such a letter and warns; and it reads formulas between dollar signs.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from qwill.views.view import FONTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

__all__ = ["drawable", "letter_of", "lettering", "shorten", "width", "write"]


def write(axes: Axes, x: float, y: float, text: str, **style: Any) -> Text:
    """Write any text at a place of the picture."""
    return axes.text(x, y, drawable(text), **lettering(), **style)


def lettering() -> dict[str, Any]:
    """How matplotlib has to be told to take a text as it stands, in the fonts that are here."""
    return {"family": [name for name, _ in _fonts()], "parse_math": False}


def drawable(text: str) -> str:
    """The text, where what no font has is written as <U+1F642>."""
    return "".join(letter if _has(letter) else f"<U+{ord(letter):04X}>" for letter in text)


def width(text: str) -> int:
    """How wide a text is, in letters: those of Chinese, Japanese and Korean, and emoji, count twice."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def shorten(text: str, most: int) -> str:
    """The text, or as much of its beginning as `most` letters wide, and "…"."""
    if width(text) <= most:
        return text
    while width(text) > most - 1:
        text = text[:-1]
    return text + "…"


@cache
def _fonts() -> list[tuple[str, str]]:
    """(name, file) of the fonts of our list that are here."""
    from matplotlib import font_manager

    here = {font.name: str(font.fname) for font in font_manager.fontManager.ttflist}
    names = [name for name in FONTS if name in here]
    return [(name, font_manager.findfont(name)) for name in names]


@cache
def _has(letter: str) -> bool:
    from matplotlib.font_manager import get_font

    return any(get_font(path).get_char_index(ord(letter)) for _, path in _fonts())


def letter_of(number: int) -> str:
    """A short name for the number of a thing in a drawing: 0 -> A … 25 -> Z, 26 -> A1, …"""
    return chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")
