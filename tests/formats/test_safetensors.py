"""One safetensors file: what is read, the whole rule set of the format, and agreement with the safetensors package."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import FormatError, QwillError
from qwill.formats.safetensors import read_safetensors

Refused = Callable[..., QwillError]
Write = Callable[..., Path]


def test_small_file_is_read(header: dict[str, Any], write_safetensors: Write) -> None:
    path = write_safetensors(header, bytes(range(40)))
    with read_safetensors(path) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert checkpoint.metadata == {"format": "pt"}
        assert {t.name: (t.dtype, t.shape) for t in checkpoint.tensors.values()} == {
            "a.weight": ("BF16", (2, 3)),
            "b.weight": ("F32", (7,)),
            "empty": ("F32", (0, 4)),
        }
        assert bytes(checkpoint.raw("b.weight")) == bytes(range(12, 40))
        assert checkpoint.raw("empty").size == 0


def test_file_written_by_the_safetensors_package_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "m": rng.standard_normal((3, 5)).astype(np.float32),
        "h": rng.standard_normal(7).astype(np.float16),
        "i": np.arange(4, dtype=np.int64),
        "b": np.array([True, False, True]),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"k": "v"})
    with read_safetensors(path) as checkpoint:
        assert checkpoint.metadata == {"k": "v"}
        assert checkpoint.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            assert checkpoint.tensors[name].shape == array.shape
            assert bytes(checkpoint.raw(name)) == array.tobytes()


def test_every_truncation_is_a_typed_error_without_memory_growth(valid_safetensors: bytes, is_refused: Refused) -> None:
    for size in range(len(valid_safetensors)):
        assert isinstance(is_refused(valid_safetensors[:size], ".safetensors"), FormatError), size


@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 3))
def test_flipped_bytes_raise_only_typed_errors_and_we_accept_only_what_the_package_accepts(
    valid_safetensors: bytes, tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(valid_safetensors)
    for _ in range(flips):
        data[rng.randrange(len(data))] = rng.choice([*b'0123456789"{}[],: ', 0xFF, rng.randrange(256)])
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(data)
    try:
        with read_safetensors(path) as checkpoint:
            ours = {t.name: (t.dtype, list(t.shape)) for t in checkpoint.tensors.values()}
    except QwillError:
        return
    with safetensors.safe_open(path, "numpy") as theirs:
        found = {name: theirs.get_slice(name) for name in theirs.keys()}  # noqa: SIM118
        assert {name: (s.get_dtype(), s.get_shape()) for name, s in found.items()} == ours


def change(name: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda header: header[name].update(values)


BAD_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "hole": (lambda h: h.pop("a.weight"), "leaves a hole before it: offset"),
    "tail": (lambda h: [h.pop("b.weight"), h.pop("empty")], "the tensors end at byte"),
    "overlap": (change("b.weight", data_offsets=[8, 36]), "overlaps the tensor before it"),
    "same bytes twice": (lambda h: h.update(c=h["b.weight"]), "overlaps"),
    "past the end": (
        lambda h: [h.pop("empty"), change("b.weight", shape=[8], data_offsets=[12, 44])(h)],
        "the tensors end at byte",
    ),
    "end before start": (change("b.weight", data_offsets=[40, 12]), "span -28"),
    "span of another size": (change("b.weight", shape=[6]), "takes 24 bytes, but its data_offsets [12, 40] span 28"),
    "product that wraps to 28 bytes": (change("b.weight", shape=[2**62 + 1, 7]), "too large"),
    "sizes of 2**63": (change("b.weight", shape=[2**63]), "is not a list of"),
    "digits without end": (change("b.weight", shape=[10**300]), "is not a list of"),
    "wrapping size beside a zero": (change("empty", shape=[0, 2**40, 2**40]), "too large"),
    "offsets near 2**64": (change("b.weight", data_offsets=[2**64 - 28, 2**64]), "are not two sizes"),
    "negative offset": (change("b.weight", data_offsets=[-16, 12]), "are not two sizes"),
    "three offsets": (change("b.weight", data_offsets=[12, 40, 40]), "are not two sizes"),
    "one offset": (change("b.weight", data_offsets=[12]), "are not two sizes"),
    "offsets as text": (change("b.weight", data_offsets="12"), "are not two sizes"),
    "offsets as floats": (change("b.weight", data_offsets=[12.0, 40.0]), "are not two sizes"),
    "offsets as booleans": (change("a.weight", shape=[], data_offsets=[False, True]), "are not two sizes"),
    "negative size": (change("b.weight", shape=[-7]), "is not a list of"),
    "size as boolean": (change("b.weight", shape=[True, 7]), "is not a list of"),
    "shape as number": (change("b.weight", shape=7), "is not a list of"),
    "33 dimensions": (change("b.weight", shape=[1] * 32 + [7]), "at most 32 sizes"),
    "unknown dtype": (change("b.weight", dtype="F31"), "unknown dtype 'F31'"),
    "dtype of another format": (change("b.weight", dtype="Q4_K"), "unknown dtype 'Q4_K'"),
    "dtype as number": (change("b.weight", dtype=32), "unknown dtype 32"),
    "half a byte": (change("a.weight", dtype="F4", shape=[23]), "not whole blocks"),
    "unknown field": (change("b.weight", code="x"), "not an object of dtype, shape and data_offsets"),
    "missing field": (lambda h: h["b.weight"].pop("dtype"), "not an object of dtype, shape and data_offsets"),
    "entry as list": (lambda h: h.update(c=[]), "not an object of dtype, shape and data_offsets"),
    "metadata as list": (lambda h: h.update(__metadata__=[1]), "__metadata__"),
    "metadata of numbers": (lambda h: h.update(__metadata__={"a": 1}), "__metadata__"),
    "no tensors but data": (lambda h: h.clear(), "the tensors end at byte"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_header_is_refused(name: str, header: dict[str, Any], is_refused: Refused) -> None:
    spoil, words = BAD_HEADERS[name]
    spoil(header)
    encoded = json.dumps(header).encode()
    error = is_refused(struct.pack("<Q", len(encoded)) + encoded + bytes(40), ".safetensors")
    assert isinstance(error, FormatError)
    assert words in str(error)


ENTRY = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
BAD_JSON = {
    "not an object": (b"[]", "does not start with '{'"),
    "space first": (b' {"a":' + ENTRY + b"}", "does not start with '{'"),
    "empty": (b"", "does not start with '{'"),
    "cut": (b'{"a":' + ENTRY, "header is not valid"),
    "two objects": (b"{}{}", "header is not valid"),
    "not UTF-8": (b'{"\xff":' + ENTRY + b"}", "not valid UTF-8 at byte 2"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "does not start with '{'"),
    "NaN": (b'{"a":NaN}', "NaN is not JSON"),
    "Infinity": (b'{"a":-Infinity}', "-Infinity is not JSON"),
    "duplicate tensor": (b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}", "'a' appears twice"),
    "duplicate field": (b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', "'dtype' appears twice"),
    "half of a surrogate pair": (b'{"\\ud800":' + ENTRY + b"}", "half of a surrogate pair"),
    "5,000 digits": (b'{"a":' + b"1" * 5000 + b"}", "header is not valid"),
    "depth of 100,000": (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    "depth of 100,000 objects": (b'{"a":' * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_refused(name: str, is_refused: Refused) -> None:
    encoded, words = BAD_JSON[name]
    error = is_refused(struct.pack("<Q", len(encoded)) + encoded + bytes(1), ".safetensors")
    assert isinstance(error, FormatError)
    assert words in str(error)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 100_000_001, 2**32, 99_999_999, 1000])
def test_header_length_is_compared_before_use(length: int, valid_safetensors: bytes, is_refused: Refused) -> None:
    data = struct.pack("<Q", length) + valid_safetensors[8:]
    error = is_refused(data, ".safetensors", seconds=0.01)
    assert ("at most 100000000" in str(error)) == (length > 100_000_000)
    assert ("remain" in str(error)) == (length <= 100_000_000)


def test_header_of_lists_that_would_fill_memory_is_refused(is_refused: Refused, tmp_path: Path) -> None:
    encoded = b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded)
    with pytest.raises(FormatError, match="more than 1048576 items"):
        read_safetensors(path)


def test_header_of_100_000_tensors_is_read_in_seconds(write_safetensors: Write) -> None:
    entry = '"model.layers.%d.weight": {"dtype": "U8", "shape": [1], "data_offsets": [%d, %d]}'
    header = "{" + ", ".join(entry % (i, i, i + 1) for i in range(100_000)) + "}"
    path = write_safetensors(header.encode(), bytes(100_000))
    start = time.process_time()
    assert len(read_safetensors(path).tensors) == 100_000
    assert time.process_time() - start < 4  # 1.1 s on an idle core


def test_padded_header_is_read(header: dict[str, Any], write_safetensors: Write) -> None:
    assert len(read_safetensors(write_safetensors(json.dumps(header).encode() + b"   ")).tensors) == 3
