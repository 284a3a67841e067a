"""Values of GGUF metadata: thirteen types, read within bounds.

Knows no key's meaning. Strings and arrays of strings become `str` and `list[str]`, arrays of numbers become read-only
numpy arrays, all other values Python's own `int`, `float` and `bool`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from qwill.formats.bounded import Cursor

__all__ = ["UINT32", "read_value"]

MAX_STRING_BYTES = 2**24
MAX_STRINGS = 2**22

UINT32 = 4
_BOOL, _STRING, _ARRAY = 7, 8, 9
# type number -> struct code, for the types of fixed size
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_UNPACK_U64 = struct.Struct("<Q").unpack_from


def read_value(cursor: Cursor, key: str, kind: int) -> Any:
    """The value that follows a key and its type number.

    Raises:
        FormatError: names the key and the offset.
    """
    if kind == _STRING:
        return cursor.string(MAX_STRING_BYTES, f"the value of {key!r:.100}")
    if kind == _ARRAY:
        return _read_array(cursor, key)
    return _read_number(cursor, key, kind)


def _read_number(cursor: Cursor, key: str, kind: int) -> int | float | bool:
    start = cursor.position
    if kind not in _NUMBERS:
        raise cursor.fail(f"{key!r:.100} is of unknown type {kind}", at=start - 4)
    code = struct.Struct("<" + _NUMBERS[kind])
    value: int | float = code.unpack(cursor.take(code.size, f"the value of {key!r:.100}"))[0]
    if kind != _BOOL:
        return value
    if value > 1:
        raise cursor.fail(f"{key!r:.100} is a boolean of value {value}", at=start)
    return bool(value)


def _read_array(cursor: Cursor, key: str) -> Any:
    start = cursor.position
    kind = cursor.u32(f"the element type of {key!r:.100}")
    count = cursor.u64(f"the length of {key!r:.100}")
    what = f"the array {key!r:.100}"
    if kind == _STRING:
        cursor.need(count, 8, what)
        cursor.limit(count, MAX_STRINGS, f"the length of {what}")
        return _read_strings(cursor, count, what)
    if kind == _ARRAY:
        raise cursor.fail(f"{what} holds arrays, which qwill does not read", at=start)
    if kind not in _NUMBERS:
        raise cursor.fail(f"{what} is of unknown type {kind}", at=start)
    dtype = np.dtype("<" + _NUMBERS[kind])
    data = cursor.take(cursor.need(count, dtype.itemsize, what), what)
    values = np.frombuffer(data, dtype=dtype)
    if kind != _BOOL:
        return values
    if values.size and values.max() > 1:
        raise cursor.fail(f"{what} holds booleans above 1", at=start)
    return values.view(np.bool_)


def _read_strings(cursor: Cursor, count: int, what: str) -> list[str]:
    """A vocabulary has 150,000 of these, so lengths and ends are local variables here and compared inline."""
    data, position, end = cursor.data, cursor.position, cursor.end
    unpack: Callable[..., tuple[int]] = _UNPACK_U64
    strings: list[str] = []
    append = strings.append
    try:
        for _ in range(count):
            start = position + 8
            if start > end:
                break
            position = start + unpack(data, position)[0]
            if position > end:
                break
            append(data[start:position].decode())
    except UnicodeDecodeError:
        raise cursor.fail(f"string {len(strings)} of {what} is not valid UTF-8") from None
    if len(strings) < count:
        raise cursor.fail(
            f"string {len(strings)} of {what} ends after the file", hint="the file is cut short or damaged"
        )
    cursor.position = position
    return strings
