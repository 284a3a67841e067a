from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from qwill.inspect.texts import format_count, printable


@given(st.integers(0, 10**12))
def test_a_count_is_within_a_twentieth_of_its_text(count: int) -> None:
    number, _, unit = format_count(count).partition(" ")
    value = float(number.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[unit]
    assert abs(value - count) <= 0.05 * count
    assert len(number) <= 7 or count > 10**11


def test_counts_are_written_as_on_model_pages() -> None:
    counts = {0: "0", 1024: "1,024", 9999: "9,999", 10_000: "10.0 k", 999_949: "999.9 k", 999_950: "1.0 M"}
    counts |= {596_049_920: "596.0 M", 999_949_999: "999.9 M", 999_950_000: "1.00 B", 8_190_735_360: "8.19 B"}
    assert {count: format_count(count) for count in counts} == counts


@given(st.text())
def test_nothing_that_moves_a_cursor_or_turns_the_direction_is_printable(text: str) -> None:
    shown = printable(text, 50)
    assert len(shown) <= 51
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in shown)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)


def test_chinese_and_emoji_stay() -> None:
    assert printable("视觉.权重 🙂") == "视觉.权重 🙂"
