"""View: what all pictures have in common. Knows no model, no trace and no particular picture.

A picture is first of all its data; everything that shows it is made from that. The HTML stands alone (no script, no
network), escapes every text, and follows the reader's light or dark setting.
"""

from __future__ import annotations

import abc
import html
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwill.errors import SettingError, UsageError
from qwill.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["View", "new_figure"]

FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "PingFang SC", "Microsoft YaHei"]
"""Tried in this order for each character; those that a machine lacks are passed over."""

SUFFIXES = (".png", ".svg", ".json")


class View(abc.ABC):
    """A picture: its data, and the ways to show it.

    `title` says in a few words what it shows; `caption` how to read it, in a sentence or two.
    """

    title: str
    caption: str

    @abc.abstractmethod
    def data(self) -> dict[str, Any]:
        """The picture as plain data, ready for JSON: finite numbers, texts, lists. What the report draws."""

    @abc.abstractmethod
    def figure(self) -> Figure:
        """The picture drawn by matplotlib.

        Raises:
            UsageError: matplotlib is not installed.
        """

    def _repr_html_(self) -> str:
        """The picture for a notebook: an SVG drawing with its title and how to read it."""
        return self._framed(self.svg())

    def svg(self) -> str:
        """The drawing as an SVG element, to be put into a page.

        Raises:
            UsageError: matplotlib is not installed.
        """
        buffer = io.BytesIO()
        self._write(buffer, "svg")
        text = buffer.getvalue().decode("utf-8")
        return text[text.index("<svg") :]

    def save(self, path: str | Path) -> None:
        """Write the picture as .png (200 dots per inch), .svg or .json, as the name ends.

        Raises:
            SettingError: the name ends otherwise.
            UsageError: matplotlib is not installed.
            OSError: the file cannot be written; what was there before is still there.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise SettingError(f"a picture cannot be saved as {path.name!r:.100}", hint="known: " + ", ".join(SUFFIXES))
        if path.suffix == ".json":
            text = json.dumps(self.data(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            with whole_file(path) as temporary:
                temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
            return
        buffer = io.BytesIO()
        self._write(buffer, path.suffix[1:])
        with whole_file(path) as temporary:
            temporary.write_bytes(buffer.getvalue())

    def _write(self, buffer: io.BytesIO, kind: str) -> None:
        figure = self.figure()  # first: it tells who lacks matplotlib
        import matplotlib as mpl
        from matplotlib import font_manager

        here = {font.name for font in font_manager.fontManager.ttflist}
        style: dict[Any, Any] = {
            "font.family": "sans-serif",
            "font.sans-serif": [name for name in FONTS if name in here],
        }
        # Without a date, and with ids from a fixed salt, the same picture is the same file.
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        style |= {"svg.hashsalt": "qwill", "svg.fonttype": "path"}
        with mpl.rc_context(style):
            figure.savefig(buffer, format=kind, dpi=200, bbox_inches="tight", metadata=metadata)

    def _framed(self, inside: str) -> str:
        """HTML around what shows the picture: `inside` must be escaped already."""
        title, caption = html.escape(self.title), html.escape(self.caption)
        return (
            '<figure class="qwill-view" style="margin:0.5em 0;max-width:100%;overflow-x:auto">'
            f'<figcaption style="margin-bottom:0.4em"><b>{title}</b> '
            f'<span style="opacity:0.75">{caption}</span></figcaption>{inside}</figure>'
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, which no window ever shows.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "drawing PNG and SVG needs matplotlib, which is not installed",
            hint="pip install 'qwill[inspect]'; .data() and the HTML report work without it",
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
