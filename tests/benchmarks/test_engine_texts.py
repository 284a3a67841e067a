"""The texts to edit hold what is to be changed."""

from __future__ import annotations

import pytest

from benchmarks.engine_texts import EDITS


@pytest.mark.parametrize(
    ("name", "word"), [("code", "take"), ("english", "Thomas"), ("chinese", "小明"), ("settings", "8080")]
)
def test_what_is_to_be_changed_is_there_and_is_little_of_the_text(name: str, word: str) -> None:
    text = EDITS[name].split("\n\n", 1)[1]
    assert 1 <= text.count(word) <= 10
    assert text.count(word) * len(word) < len(text) / 10


def test_the_code_is_code() -> None:
    import ast

    assert ast.parse(EDITS["code"].split("\n\n", 1)[1])
