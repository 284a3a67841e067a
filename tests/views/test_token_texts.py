"""Whatever a token is, its text is visible and turns nothing."""

from __future__ import annotations

import itertools
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.views.token_texts import NO_TOKEN, group_starts, is_partial, printable, token_bytes, token_text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" the", "·the"),
        (b"\n\t\r\x00\x7f", "↵⇥<U+000D><U+0000><U+007F>"),
        ("你好🙂é".encode(), "你好🙂é"),
        (b"\xe4\xbd", "<0xE4><0xBD>"),
        (b"a\xff\xe4\xbd\xa0", "a<0xFF>你"),
        ("\u202e\u2066\u200b\ufeff\u00ad\u200d".encode(), "<U+202E><U+2066><U+200B><U+FEFF><U+00AD><U+200D>"),
        ("\ufe0f\u3164\u115f\u2800".encode(), "<U+FE0F><U+3164><U+115F><U+2800>"),
        ("\u00a0\u3000\u2028\u0085".encode(), "<U+00A0><U+3000><U+2028><U+0085>"),
        ("\u0301".encode(), "\u25cc\u0301"),
        ("e\u0301".encode(), "e\u0301"),
        (b"\xed\xa0\x80", "<0xED><0xA0><0x80>"),  # half of a surrogate pair is no character
        (b"", ""),
    ],
)
def test_bytes_as_visible_text(data: bytes, shown: str) -> None:
    assert printable(data) == shown


@given(st.binary(max_size=12))
def test_nothing_invisible_is_left(data: bytes) -> None:
    shown = printable(data)
    assert all(unicodedata.category(letter)[0] not in "CZ" for letter in shown)
    assert bool(shown) == bool(data)


def test_the_tokens_of_one_character_are_a_group() -> None:
    pieces = [b"a", b"\xe4\xbd", b"\xa0", b"b", b"\xf0\x9f", b"\x99", b"\x82 \xe4", b"\xbd\xa0", b"", b"\xa0", b"c"]
    assert group_starts(pieces) == [0, 1, 1, 3, 4, 4, 4, 4, 8, 9, 10]


@given(st.text(max_size=8), st.data())
def test_a_group_is_whole_however_a_text_is_cut(text: str, data: Any) -> None:
    whole = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)) | {0, len(whole)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(cuts)]
    groups: dict[int, bytes] = {}
    for start, piece in zip(group_starts(pieces), pieces, strict=True):
        groups[start] = groups.get(start, b"") + piece
    assert not any(is_partial(group) for group in groups.values())
    assert b"".join(groups.values()) == whole


def test_an_id_without_a_token_says_so(tiny_tokenizer: Any) -> None:
    beyond = tiny_tokenizer.vocab_size + 5
    assert token_bytes(tiny_tokenizer, beyond) == b""
    assert token_text(tiny_tokenizer, beyond) == NO_TOKEN
    ids = tiny_tokenizer.encode("你")
    assert len(ids) == 3
    assert token_text(tiny_tokenizer, ids) == "你"
    assert token_text(tiny_tokenizer, [*ids, beyond]) == "<0xE4><0xBD><0xA0>" + NO_TOKEN
