"""GGUF headers and tensor lists: what is read, and that whatever is wrong ends in a typed error, fast."""

from __future__ import annotations

import contextlib
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import FormatError, QwillError, UnsupportedModelError
from qwill.formats.gguf import read_gguf

Refused = Callable[..., QwillError]
U32, STRING, F32_TYPE, I8_TYPE = 4, 8, 0, 24
HUGE = (2**64 - 1, 2**63, 2**32, 9_999)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def test_small_file_is_read(gguf_file: Any, tmp_path: Path) -> None:
    path = gguf_file.write(tmp_path / "x.gguf")
    with read_gguf(path) as checkpoint:
        assert checkpoint.format == "gguf"
        assert {t.name: (t.dtype, t.shape) for t in checkpoint.tensors.values()} == {
            "norm.weight": ("F32", (5,)),
            "a.weight": ("Q8_0", (2, 32)),
            "b.weight": ("Q4_K", (256,)),
        }
        assert checkpoint.raw("norm.weight").view("<f4").tolist() == [1, 2, 3, 4, 5]
        assert bytes(checkpoint.raw("a.weight")) == bytes(range(68))
        assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["a", "b", "", "你好", "<|im_end|>"]
        for info in checkpoint.tensors.values():
            assert path.read_bytes()[info.offset : info.offset + info.nbytes] == bytes(checkpoint.raw(info.name))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("extra", [b"", bytes(7)])
def test_both_versions_are_read_with_and_without_extra_bytes(
    gguf_file: Any, tmp_path: Path, version: int, extra: bytes
) -> None:
    gguf_file.version, gguf_file.tail = version, extra
    assert len(read_gguf(gguf_file.write(tmp_path / "x.gguf")).tensors) == 3


def test_file_without_keys_and_tensors_is_read(new_gguf: Any, tmp_path: Path) -> None:
    checkpoint = read_gguf(new_gguf().write(tmp_path / "x.gguf"))
    assert (checkpoint.tensors, checkpoint.metadata) == ({}, {})


def test_zero_dimension_is_an_empty_tensor(gguf_file: Any, tmp_path: Path) -> None:
    gguf_file.tensor(b"none", [0, 3], F32_TYPE, b"").tensor(b"scalar", [], F32_TYPE, bytes(4))
    checkpoint = read_gguf(gguf_file.write(tmp_path / "x.gguf"))
    assert (checkpoint.tensors["none"].shape, checkpoint.tensors["none"].nbytes) == ((3, 0), 0)
    assert checkpoint.raw("none").size == 0
    assert checkpoint.tensors["scalar"].shape == ()


def test_file_written_by_the_gguf_package_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(7)
    writer.add_custom_alignment(64)
    writer.add_float64("f64", 0.1)
    writer.add_int8("i8", -3)
    writer.add_uint64("u64", 2**63)
    writer.add_bool("yes", True)
    writer.add_token_list(["a", "é", "<|x|>"])
    writer.add_array("floats", [0.5, 1.5])
    matrix = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    packed = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("m", packed, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("v", matrix[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with read_gguf(path) as checkpoint:
        data = checkpoint.metadata
        assert (data["qwen3.block_count"], data["f64"], data["i8"], data["u64"]) == (7, 0.1, -3, 2**63)
        assert data["yes"] is True
        assert data["tokenizer.ggml.tokens"] == ["a", "é", "<|x|>"]
        assert data["floats"].tolist() == [0.5, 1.5]
        assert (checkpoint.tensors["m"].shape, checkpoint.tensors["m"].dtype) == ((3, 64), "Q5_1")
        assert bytes(checkpoint.raw("m")) == packed.tobytes()
        assert checkpoint.raw("v").view("<f4").tolist() == matrix[0].tolist()


def test_every_truncation_is_a_typed_error_without_memory_growth(
    valid_gguf: bytes, is_refused: Refused, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(valid_gguf)
    needed = max(t.offset + t.nbytes for t in read_gguf(path).tensors.values())
    for size in range(needed):
        error = is_refused(valid_gguf[:size])
        assert isinstance(error, FormatError), size
    path.write_bytes(valid_gguf[:needed])
    assert len(read_gguf(path).tensors) == 3  # only the padding after the last tensor is gone


@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 4))
def test_flipped_bytes_never_raise_anything_but_typed_errors(
    valid_gguf: bytes, tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(valid_gguf)
    for _ in range(flips):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    with contextlib.suppress(QwillError), read_gguf(path) as checkpoint:
        for name, info in checkpoint.tensors.items():
            assert checkpoint.raw(name).size == info.nbytes


Spoil = Callable[[Any], object]


def fields(**values: Any) -> Spoil:
    """Spoils the file by setting fields of its builder."""
    return lambda file: [setattr(file, name, value) for name, value in values.items()]


def tensor(
    name: bytes = b"t", dims: tuple[int, ...] = (8,), kind: int = 0, data: bytes = bytes(32), **more: Any
) -> Spoil:
    """Spoils the file by one more tensor."""
    return lambda file: file.tensor(name, list(dims), kind, data, **more)


def alignment(value: int) -> Spoil:
    """Spoils the file by its alignment; the tensors stay where an alignment of 32 puts them."""
    return lambda file: [file.keys.pop(1), file.key("general.alignment", U32, u32(value))]


# The kinds of llama.cpp's hand-made bad files and of the published attacks (the list, rebuilt): name -> (spoil, words).
BAD: dict[str, tuple[Spoil, str]] = {
    "magic": (fields(magic=b"GGUX"), "not a GGUF file"),
    "version 0": (fields(version=0), "GGUF version 0"),
    "version 1": (fields(version=1), "GGUF version 1"),
    "version 4": (fields(version=4), "GGUF version 4"),
    "future version": (fields(version=2**31 + 5), "GGUF version"),
    "big-endian 3": (fields(version=3 << 24), "big-endian GGUF file .version 3"),
    "big-endian 2": (fields(version=2 << 24), "big-endian GGUF file .version 2"),
    **{f"{n} tensors": (fields(tensor_count=n), "the tensor count|announces") for n in HUGE},
    **{f"{n} keys": (fields(key_count=n), "the key count|announces") for n in HUGE},
    "one key too many": (lambda f: setattr(f, "key_count", len(f.keys) + 1), "name is empty|a key"),
    "one tensor too many": (lambda f: setattr(f, "tensor_count", len(f.tensors) + 1), "name is empty"),
    "one key too few": (lambda f: setattr(f, "key_count", len(f.keys) - 1), "number of dimensions is 9"),
    "key size": (lambda f: f.keys.insert(0, struct.pack("<Q", 2**63) + b"x"), "a key needs"),
    "key of 64 KiB": (lambda f: f.key(b"k" * 2**16, U32, u32(1)), "the length of a key is 65536"),
    "empty key": (lambda f: f.key(b"", U32, u32(1)), "a key is empty"),
    "key not UTF-8": (lambda f: f.key(b"\xff\xfe", U32, u32(1)), "a key is not valid UTF-8"),
    "duplicate key": (lambda f: f.key("qwen3.block_count", U32, u32(1)), "'qwen3.block_count' appears twice"),
    **{f"alignment {n}": (alignment(n), f"alignment is {n}") for n in (0, 1, 4, 13, 48, 8192, 2**31, 2**32 - 1)},
    "alignment of another type": (
        lambda f: [f.keys.pop(1), f.key("general.alignment", 10, struct.pack("<Q", 32))],
        "not an unsigned 32-bit",
    ),
    "alignment as text": (
        lambda f: [f.keys.pop(1), f.key("general.alignment", STRING, struct.pack("<Q", 2) + b"32")],
        "not an unsigned 32-bit",
    ),
    "inconsistent alignment": (alignment(64), "hole|not a multiple"),
    "split file": (lambda f: f.key("split.count", 2, struct.pack("<H", 3)), "split into 3 parts"),
    "split count as text": (lambda f: f.key("split.count", STRING, struct.pack("<Q", 1) + b"3"), "split.count is not"),
    "split count as an array": (
        lambda f: f.key("split.count", 9, struct.pack("<IQH", 2, 1, 3)), "split.count is not a whole number",
    ),
    "split count as a boolean": (lambda f: f.key("split.count", 7, b"\1"), "split.count is not a whole number"),
    "tensor name too long": (tensor(name=b"n" * 65), "name is 65"),
    "no key announced": (fields(key_count=0), "number of dimensions is 8"),
    "tensor name not UTF-8": (tensor(name=b"\xc3\x28"), "name is not valid UTF-8"),
    "empty tensor name": (tensor(name=b""), "name is empty"),
    "duplicate tensor": (tensor(name=b"a.weight"), "'a.weight' appears twice"),
    "5 dimensions": (tensor(dims=(1, 1, 1, 1, 8)), "number of dimensions is 5"),
    "2**32 - 1 dimensions": (tensor(n_dims=2**32 - 1), "number of dimensions is 4294967295"),
    "negative size": (tensor(dims=(2**64 - 8,)), "too large"),
    "sizes whose product wraps": (tensor(dims=(2**32, 2**32)), "too large"),
    "sizes whose product wraps to 8": (tensor(dims=(2**63 + 4, 2)), "too large"),
    "bytes that wrap": (tensor(dims=(2**62 + 2,)), "too large"),
    "quantized sizes that wrap": (tensor(kind=8, dims=(32, 2**59, 2)), "too large"),
    "a padded size that wraps": (tensor(dims=((2**64 - 1) // 4,)), "too large|end of the file"),
    "wrapping size beside a zero": (tensor(dims=(0, 2**40, 2**40)), "too large"),
    "exabytes": (tensor(dims=(2**58,), kind=I8_TYPE), "end of the file"),
    "row of a broken block": (tensor(kind=8, dims=(31, 2), data=bytes(68)), "not whole blocks of 32"),
    "row of half a superblock": (tensor(kind=12, dims=(128, 2), data=bytes(144)), "not whole blocks of 256"),
    "unknown type": (tensor(kind=77), "unknown type 77"),
    "type 2**32 - 1": (tensor(kind=2**32 - 1), "unknown type 4294967295"),
    "offset not aligned": (tensor(offset=257), "not a multiple of 32"),
    "offset of another tensor": (tensor(offset=0), "overlaps"),
    "offset past a hole": (tensor(offset=2**20), "hole"),
    "offset 2**64 - 32": (tensor(offset=2**64 - 32), "hole"),
    "one byte too few": (lambda f: f.tensor(b"t", [9], 0, bytes(32)), "end of the file"),
    "size near 2**63, twice": (
        lambda f: [f.tensor(n, [0x7FFFFFFFFFFFFFC0], I8_TYPE, b"", offset=o) for n, o in ((b"t", 288), (b"u", 2**62))],
        "end of the file|hole|overlaps",
    ),
    "no data": (lambda f: [setattr(t, "data", b"") or setattr(t, "offset", 0) for t in f.tensors], "end of|overlaps"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused(name: str, gguf_file: Any, is_refused: Refused) -> None:
    spoil, words = BAD[name]
    spoil(gguf_file)
    error = is_refused(gguf_file.build())
    assert_words(words, error)
    assert error.where


def assert_words(words: str, error: QwillError) -> None:
    assert re.search(words, str(error)), str(error)


@pytest.mark.parametrize("kind", [4, 9, 15, 16, 20, 23, 29, 34, 39, 41])
def test_types_that_exist_but_are_not_implemented_are_refused_by_name(
    kind: int, gguf_file: Any, is_refused: Refused
) -> None:
    gguf_file.tensor(b"t", [256], kind, bytes(512))
    error = is_refused(gguf_file.build())
    assert isinstance(error, UnsupportedModelError)
    known = {int(member): member.name for member in gguf.GGMLQuantizationType} | {4: "Q4_2"}
    assert f"type {known[kind]}," in error.what


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**40, 2**32 - 1])
def test_hostile_counts_are_refused_in_ten_milliseconds(count: int, gguf_file: Any, is_refused: Refused) -> None:
    for name in ("tensor_count", "key_count"):
        setattr(gguf_file, name, count)
        is_refused(gguf_file.build(), seconds=0.01)
        setattr(gguf_file, name, None)


def test_tensor_that_ends_one_byte_after_the_file_is_refused(gguf_file: Any, is_refused: Refused) -> None:
    gguf_file.tensor(b"t", [64], I8_TYPE, bytes(64))
    data = gguf_file.build()
    error = is_refused(data[:-1])
    assert "'t'" in error.where
    assert "cut short" in error.hint
