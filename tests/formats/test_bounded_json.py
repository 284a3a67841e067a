"""JSON within bounds: equal to the standard library's on good input, a ValueError in words on all other."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.formats.bounded_json import parse_object

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans())
def test_objects_are_read_as_json_reads_them(content: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(content, ensure_ascii=ascii_only).encode()) == content


@settings(max_examples=100)
@given(st.binary(max_size=20))
def test_other_bytes_end_in_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words
        parse_object(b"{" + data + b"\x00")


@pytest.mark.parametrize("place", ["key", "value", "nested"])
def test_half_of_a_surrogate_pair_is_refused_everywhere(place: str) -> None:
    content: Any = {"key": {"\ud800": 1}, "value": {"a": "\udc00"}, "nested": {"a": [{"b": "x\ud83d"}]}}[place]
    with pytest.raises(ValueError, match="surrogate"):
        parse_object(json.dumps(content).encode())
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_too_many_items_are_refused_before_they_are_read() -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="more than 1048576 items"):
        parse_object(b'{"a":[' + b"0," * 4_000_000 + b"0]}")
    assert time.process_time() - began < 0.5


def test_nested_duplicate_is_refused() -> None:
    with pytest.raises(ValueError, match="'b' appears twice"):
        parse_object(b'{"a": [{"b": 1, "c": 2, "b": 3}]}')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000])
def test_what_is_no_finite_number_is_refused(number: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words
        parse_object(f'{{"a": [{number}]}}'.encode())
