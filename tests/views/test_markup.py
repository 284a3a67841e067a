"""Texts in HTML do no harm, and numbers are short and honest."""

from __future__ import annotations

import pytest

from qwill.views.markup import STYLE, escape, percent, shade


def test_a_text_is_no_markup() -> None:
    assert escape("<b title='\"'>&amp;") == "<bdi>&lt;b title=&#x27;&quot;&#x27;&gt;&amp;amp;</bdi>"


@pytest.mark.parametrize(
    ("probability", "shown"),
    [(1.0, "100%"), (0.9999, ">99%"), (0.97, "97%"), (0.0312, "3.1%"), (0.001, "0.1%"), (1e-9, "<0.1%"), (0.0, "0%")],
)
def test_a_probability_is_never_said_to_be_sure_or_impossible_when_it_is_not(probability: float, shown: str) -> None:
    assert percent(probability) == shown


def test_the_page_shows_through_every_colour() -> None:
    assert shade(1.0) == "background:rgba(0,114,178,0.55)"
    assert shade(0.0).endswith(",0.00)")
    assert "url(" not in STYLE
    assert "@import" not in STYLE
