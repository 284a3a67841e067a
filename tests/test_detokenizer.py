"""The detokenizer against the `tokenizers` library's own byte-level decoder, on valid and invalid UTF-8."""

from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from qwill.detokenizer import Detokenizer, byte_level, bytes_of_token

MIXED = "A 世界ab👩‍👩‍👧‍👦é e\u0301 שלום\r\n\t😀𝔘"


def stream_of(pieces: list[bytes], skip: frozenset[int] = frozenset()) -> list[str]:
    """The deltas, the last one from `finish`, of tokens that are these bytes."""
    stream = Detokenizer(pieces.__getitem__, skip)
    return [*(stream.push(i) for i in range(len(pieces))), stream.finish()]


LETTERS = {bytes_of_token(letter): letter for letter in pre_tokenizers.ByteLevel.alphabet()}


def test_the_table_is_the_librarys_alphabet() -> None:
    assert sorted(LETTERS) == [bytes([byte]) for byte in range(256)]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_text_is_spelled_as_the_librarys_pre_tokenizer_spells_it(text: str) -> None:
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert byte_level(text) == "".join(word for word, _ in library.pre_tokenize_str(text))


def test_a_token_outside_the_table_is_its_own_text() -> None:
    assert bytes_of_token("<｜end▁of▁sentence｜>") == "<｜end▁of▁sentence｜>".encode()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=12))
def test_deltas_join_to_the_librarys_decoding_of_any_bytes(pieces: list[bytes]) -> None:
    tokens = ["".join(LETTERS[bytes([byte])] for byte in piece) for piece in pieces]
    assert "".join(stream_of(pieces)) == decoders.ByteLevel().decode(tokens)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_cut_of_mixed_text_gives_whole_characters_only(data: st.DataObject) -> None:
    raw = MIXED.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    deltas = stream_of(pieces)
    assert "".join(deltas) == MIXED
    assert "\ufffd" not in "".join(deltas)


def test_a_character_comes_with_its_last_byte_and_not_before() -> None:
    assert stream_of([b"A", b"\xe4", b"\xb8", b"\x96", b"ab"]) == ["A", "", "", "世", "ab", ""]


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    assert stream_of([b"\xf0\x9f", b"\x98"]) == ["", "", "\ufffd"]


def test_skipped_tokens_give_no_text_and_do_not_break_a_character() -> None:
    assert stream_of([b"\xe4\xb8", b"<|im_end|>", b"\x96"], frozenset({1})) == ["", "", "世", ""]


def test_combining_characters_stay_as_they_were_written() -> None:
    text = unicodedata.normalize("NFD", "é한")
    assert "".join(stream_of([bytes([byte]) for byte in text.encode()])) == text
