"""A drawing that takes its ink and its ground from the page around it, so that it fits a light and a dark one."""

from __future__ import annotations

from qwill.views.view import View

__all__ = ["BLACK", "WHITE", "SeeThrough"]

BLACK, WHITE = "#010101", "#fefefe"
"""For letters on a coloured square: these stay as they are."""


class SeeThrough(View):
    """A view whose drawing lies on a notebook's page like its text: black becomes the page's colour of letters, and
    white grounds nothing. A file that is saved has its white ground.
    """

    def _repr_html_(self) -> str:
        """See `View._repr_html_`."""
        return self._framed(self.drawing())

    def drawing(self) -> str:
        """The drawing as an SVG element without colours of its own for ink and ground.

        Raises:
            UsageError: matplotlib is not installed.
        """
        text = self.svg().replace("#ffffff", "none").replace("#000000", "currentColor")
        return text.replace("<svg ", '<svg fill="currentColor" ', 1)
