"""The cursor never leaves its buffer, whatever the sizes are."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.errors import FormatError
from qwill.formats.bounded import Cursor

COUNTS = st.one_of(st.integers(-(2**65), 2**65), st.integers(-2, 20))


def test_values_are_read_one_after_another() -> None:
    cursor = Cursor(struct.pack("<IQQ2s", 7, 2**40, 2, b"ok"), file="f")
    assert (cursor.u32("a"), cursor.u64("b"), cursor.string(9, "c")) == (7, 2**40, "ok")
    assert cursor.position == cursor.end


@given(data=st.binary(max_size=16), count=COUNTS, unit=st.integers(1, 16))
def test_need_accepts_exactly_what_remains(data: bytes, count: int, unit: int) -> None:
    cursor = Cursor(data, file="f")
    if 0 <= count * unit <= len(data):
        assert cursor.need(count, unit, "x") == count * unit
    else:
        with pytest.raises(FormatError, match=f"x needs {count * unit} bytes, but {len(data)} remain"):
            cursor.need(count, unit, "x")
    assert cursor.position == 0


@given(data=st.binary(max_size=12))
def test_reading_ends_in_a_value_or_a_typed_error(data: bytes) -> None:
    for read in (Cursor.u32, Cursor.u64, lambda c, what: c.string(100, what), lambda c, what: c.take(9, what)):
        cursor = Cursor(data, file="f")
        try:
            read(cursor, "x")
        except FormatError as error:
            assert error.where.startswith("f, offset ")  # noqa: PT017
        assert 0 <= cursor.position <= len(data)


def test_limit_names_both_numbers() -> None:
    cursor = Cursor(b"", file="f")
    assert cursor.limit(5, 5, "x") == 5
    with pytest.raises(FormatError, match="x is 6; at most 5"):
        cursor.limit(6, 5, "x")
    with pytest.raises(FormatError, match="x is -1"):
        cursor.limit(-1, 5, "x")


def test_string_longer_than_the_limit_is_refused_where_it_starts() -> None:
    cursor = Cursor(struct.pack("<Q", 4) + b"\xff\xff\xff\xff", file="f")
    with pytest.raises(FormatError, match="at most 3"):
        cursor.string(3, "x")
    cursor.position = 0
    with pytest.raises(FormatError, match="not valid UTF-8") as caught:
        cursor.string(4, "x")
    assert caught.value.where == "f, offset 0"
