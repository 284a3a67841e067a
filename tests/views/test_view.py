"""What all pictures have in common, on a picture made for this."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qwill.errors import SettingError
from qwill.views.view import View, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line(View):
    title: str = "A <line>"
    caption: str = "up & down, 你好"

    def data(self) -> dict[str, Any]:
        return {"values": [1, 2.5], "text": "你"}

    def figure(self) -> Figure:
        figure = new_figure(3, 2)
        figure.subplots().plot([1, 2.5], label="a 你")
        return figure


def test_a_picture_is_saved_as_its_name_ends(tmp_path: Path) -> None:
    for suffix in (".png", ".svg", ".json"):
        Line().save(tmp_path / f"line{suffix}")
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(tmp_path / "line.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "line.json").read_text(encoding="utf-8")) == Line().data()


def test_another_ending_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"line\.gif"):
        Line().save(tmp_path / "line.gif")
    assert list(tmp_path.iterdir()) == []


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        Line().save(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_html_escapes_its_texts_and_holds_the_drawing() -> None:
    page = Line()._repr_html_()
    assert "A &lt;line&gt;" in page
    assert "up &amp; down, 你好" in page
    assert "<line>" not in page
    assert "<svg" in page


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from qwill.views.view import new_figure\n"
        "try: new_figure(1, 1)\n"
        "except Exception as error: print(type(error).__name__, error.hint)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("UsageError pip install 'qwill[inspect]'")
