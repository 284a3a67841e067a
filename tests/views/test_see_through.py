"""Drawings that take ink and ground from the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwill.views.see_through import BLACK, WHITE, SeeThrough
from qwill.views.view import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Square(SeeThrough):
    title: str = "A square"
    caption: str = "with letters"

    def data(self) -> dict[str, Any]:
        return {}

    def figure(self) -> Figure:
        figure = new_figure(2, 2)
        axes = figure.subplots()
        axes.text(0.2, 0.2, "light", color=WHITE)
        axes.text(0.2, 0.6, "dark", color=BLACK)
        axes.plot([0, 1], label="line")
        axes.legend()
        return figure


def test_ink_and_ground_are_the_pages_and_letters_on_colours_are_not() -> None:
    page = Square()._repr_html_()
    assert "#000000" not in page
    assert "#ffffff" not in page
    assert page.count("currentColor") > 5
    assert "fill: none" in page
    assert WHITE in page
    assert BLACK in page


def test_a_file_keeps_its_ground(tmp_path: Path) -> None:
    Square().save(tmp_path / "square.svg")
    text = (tmp_path / "square.svg").read_text(encoding="utf-8")
    assert "#ffffff" in text
    assert "currentColor" not in text
