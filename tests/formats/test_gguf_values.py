"""Values of GGUF metadata: all types against the gguf package, and bounds of strings and arrays."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from qwill.errors import FormatError, QwillError
from qwill.formats.gguf import read_gguf

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
EXTREMES = {
    0: [0, 255], 1: [-128, 127], 2: [0, 65535], 3: [-32768, 32767], 4: [0, 2**32 - 1], 5: [-(2**31), 2**31 - 1],
    6: [-0.5, float("inf")], 7: [False, True], 10: [0, 2**64 - 1], 11: [-(2**63), 2**63 - 1], 12: [0.1, -1e300],
}  # fmt: skip


@pytest.mark.parametrize("kind", CODES)
def test_every_number_type_is_read(kind: int, new_gguf: Any, tmp_path: Path) -> None:
    file = new_gguf()
    for i, value in enumerate(EXTREMES[kind]):
        file.key(f"k{i}", kind, struct.pack("<" + CODES[kind], value))
    metadata = read_gguf(file.write(tmp_path / "x.gguf")).metadata
    assert list(metadata.values()) == EXTREMES[kind]
    assert {type(value) for value in metadata.values()} == {type(EXTREMES[kind][0])}


@pytest.mark.parametrize("kind", CODES)
def test_every_array_type_is_read_as_a_read_only_array(kind: int, new_gguf: Any, tmp_path: Path) -> None:
    body = struct.pack(f"<IQ2{CODES[kind]}", kind, 2, *EXTREMES[kind])
    path = new_gguf().key("a", ARRAY, body).key("after", STRING, struct.pack("<Q", 1) + b"x").write(tmp_path / "x.gguf")
    metadata = read_gguf(path).metadata
    assert metadata["a"].tolist() == EXTREMES[kind]
    assert metadata["a"].dtype == np.dtype("<" + CODES[kind])
    assert not metadata["a"].flags.writeable
    assert metadata["after"] == "x"


def test_values_equal_those_that_the_gguf_package_reads(valid_gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(valid_gguf)
    ours = read_gguf(path).metadata
    theirs = {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert (ours[key].tolist() if isinstance(ours[key], np.ndarray) else ours[key]) == value


@pytest.mark.parametrize("kind", [*CODES, STRING])
@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**61, 2**30, 1000])
def test_array_longer_than_the_file_is_refused_in_ten_milliseconds(
    kind: int, count: int, gguf_file: Any, is_refused: Callable[..., QwillError]
) -> None:
    gguf_file.key("a", ARRAY, struct.pack("<IQ", kind, count) + bytes(16))
    error = is_refused(gguf_file.build(), seconds=0.01)
    assert "'a'" in error.what


BAD_VALUES = {
    "unknown type": (13, b"\0" * 8, "unknown type 13"),
    "type 2**32 - 1": (2**32 - 1, b"\0" * 8, "unknown type 4294967295"),
    "array of unknown type": (ARRAY, struct.pack("<IQ", 99, 1) + bytes(8), "unknown type 99"),
    "array of arrays": (ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQB", 0, 1, 7), "holds arrays"),
    "boolean 2": (7, b"\2", "a boolean of value 2"),
    "array with boolean 2": (ARRAY, struct.pack("<IQ", 7, 2) + b"\1\2", "booleans above 1"),
    "string longer than the file": (STRING, struct.pack("<Q", 2**40) + b"x", "needs 1099511627776 bytes"),
    "string of 2**64 - 1": (STRING, struct.pack("<Q", 2**64 - 1) + b"x", "needs 18446744073709551615 bytes"),
    "string not UTF-8": (STRING, struct.pack("<Q", 2) + b"\xc3\x28", "not valid UTF-8"),
    "token not UTF-8": (ARRAY, struct.pack("<IQQ", STRING, 1, 1) + b"\xff", "string 0 of the array 'a' is not valid"),
    "token of 2**31 bytes": (ARRAY, struct.pack("<IQQ", STRING, 1, 2**31) + b"x", "string 0 of the array 'a' ends"),
    "second token of 2**64 - 1": (
        ARRAY, struct.pack("<IQQ", STRING, 2, 0) + struct.pack("<Q", 2**64 - 1), "string 1 of the array 'a' ends after",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_value_is_refused_by_its_key(name: str, gguf_file: Any, is_refused: Callable[..., QwillError]) -> None:
    kind, body, words = BAD_VALUES[name]
    gguf_file.key("a", kind, body)
    error = is_refused(gguf_file.build())
    assert isinstance(error, FormatError)
    assert words in error.what
    assert "'a'" in error.what


def test_vocabulary_of_a_real_size_is_read_in_half_a_second(new_gguf: Any, tmp_path: Path) -> None:
    words = [f"Ġword{i}" for i in range(151_936)]
    path = new_gguf().strings("tokens", words).strings("merges", words).write(tmp_path / "x.gguf")
    start = time.process_time()
    metadata = read_gguf(path).metadata
    assert time.process_time() - start < 0.5
    assert metadata["tokens"] == words
