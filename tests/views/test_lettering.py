"""Any text can be drawn, without a warning: pytest makes errors of them."""

from __future__ import annotations

import io

from qwill.views.lettering import drawable, shorten, width, write
from qwill.views.view import new_figure


def test_what_no_font_has_is_written_as_its_number() -> None:
    assert drawable("abc·↵⇥") == "abc·↵⇥"
    assert drawable("\U0001fae0") == "<U+1FAE0>"


def test_a_hostile_text_is_drawn() -> None:
    figure = new_figure(3, 1)
    axes = figure.subplots()
    for text in ("$x^", "\\frac{", "你好", "\U0001fae0🙂", "<script>", "--><b>"):
        write(axes, 0.5, 0.5, text)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    svg = buffer.getvalue().decode()
    assert "<script>" not in svg
    assert "--><b>" not in svg


def test_wide_letters_count_twice_and_long_texts_are_cut() -> None:
    assert (width("ab"), width("你b")) == (2, 3)
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert shorten("你好世界", 6) == "你好…"
