"""Packed weights in a safetensors file: what is read, and how every kind of damage is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats import open_checkpoint
from qwill.formats.packed import packed_metadata, stored_bytes

NBYTES = 2 * 2 * (512 + 32)  # 20 rows are two panels, 40 columns two groups
STORED = -(-NBYTES // 64) * 64


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """A valid header of an int8 matrix and a bias, apart from the padding that puts the data at 64 bytes."""
    metadata = {"quant_method": "qwill", "quant_version": "1", "packed": json.dumps({"w": ["int8", 20, 40]})}
    tensors = {
        "w": {"dtype": "U8", "shape": [STORED], "data_offsets": [0, STORED]},
        "b": {"dtype": "F32", "shape": [20], "data_offsets": [STORED, STORED + 80]},
    }
    return metadata, tensors


@pytest.fixture
def write(write_safetensors: Callable[..., Path]) -> Callable[..., Path]:
    """Writes the file of such parts, its data at a multiple of 64 bytes (or `shift` off)."""

    def write(metadata: dict[str, Any], tensors: dict[str, Any], shift: int = 0) -> Path:
        text = json.dumps({"__metadata__": metadata, **tensors}).encode()
        text += b" " * (-(len(text) + 8) % 64 + shift)
        return write_safetensors(text, bytes(STORED + 80))

    return write


def test_a_packed_matrix_has_its_format_and_shape(write: Callable[..., Path]) -> None:
    with open_checkpoint(write(*parts())) as checkpoint:
        info = checkpoint.tensors["w"]
        assert (info.dtype, info.shape, info.nbytes) == ("int8", (20, 40), NBYTES)
        assert info.offset % 64 == 0
        assert checkpoint.tensors["b"].dtype == "F32"


def test_the_metadata_we_write_is_the_metadata_we_read() -> None:
    metadata, _ = parts()
    ours = packed_metadata({"w": ("int8", 20, 40)})
    assert json.loads(ours["packed"]) == json.loads(metadata["packed"])
    assert {key: ours[key] for key in ("quant_method", "quant_version")} == {
        "quant_method": "qwill",
        "quant_version": "1",
    }
    assert stored_bytes(NBYTES) == STORED


def test_a_file_of_another_method_is_left_alone(write: Callable[..., Path]) -> None:
    metadata, tensors = parts()
    with open_checkpoint(write({**metadata, "quant_method": "other"}, tensors)) as checkpoint:
        assert checkpoint.tensors["w"].dtype == "U8"


@pytest.mark.parametrize("version", ["2", "", "1.0", None])
def test_another_version_is_refused(write: Callable[..., Path], version: str | None) -> None:
    metadata, tensors = parts()
    metadata.pop("quant_version") if version is None else metadata.update(quant_version=version)
    with pytest.raises(UnsupportedModelError, match=r"of version .* are not read, only 1"):
        open_checkpoint(write(metadata, tensors))


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ({"w": ["int8", 21, 40]}, None),
        ({"w": ["int8", 33, 40]}, "take 3264 bytes, but the tensor is U8"),
        ({"w": ["int8", 20, 65]}, "take 3264 bytes"),
        ({"w": ["uint4_super", 20, 40]}, "weights of format uint4_super take"),
        ({"w": ["int8", 2**47, 2**47]}, "take"),
        ({"w": ["int8", 2**48, 1]}, "are not rows and columns"),
        ({"w": ["int8", 0, 40]}, "are not rows and columns"),
        ({"w": ["int8", -20, 40]}, "are not rows and columns"),
        ({"w": ["int8", True, 40]}, "are not rows and columns"),
        ({"w": ["int8", 20.0, 40]}, "are not rows and columns"),
        ({"w": ["int8", "20", 40]}, "are not rows and columns"),
        ({"w": ["int8", 20]}, "is not a format, rows and columns"),
        ({"w": [8, 20, 40]}, "is not a format, rows and columns"),
        ({"w": "int8"}, "is not a format, rows and columns"),
        ({"b": ["int8", 20, 40]}, "but the tensor is F32"),
        ({"other": ["int8", 20, 40]}, "'other' is not in the file"),
        ([], "the list of packed tensors is not valid"),
    ],
)
def test_entries_that_cannot_be_are_refused(write: Callable[..., Path], packed: Any, message: str | None) -> None:
    metadata, tensors = parts()
    path = write({**metadata, "packed": json.dumps(packed)}, tensors)
    if message is None:  # as many panels: the file cannot tell; the model's shape will
        open_checkpoint(path).close()
        return
    with pytest.raises(FormatError, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.where


@pytest.mark.parametrize("packed", ["", "{", '{"w": 1, "w": 2}', "[" * 9999])
def test_a_list_that_is_no_json_object_is_refused(write: Callable[..., Path], packed: str) -> None:
    metadata, tensors = parts()
    with pytest.raises(FormatError, match="the list of packed tensors is not valid"):
        open_checkpoint(write({**metadata, "packed": packed}, tensors))


def test_a_missing_list_is_refused(write: Callable[..., Path]) -> None:
    metadata, tensors = parts()
    del metadata["packed"]
    with pytest.raises(FormatError, match="the list of packed tensors is not valid"):
        open_checkpoint(write(metadata, tensors))


def test_an_unknown_format_is_refused_by_name(write: Callable[..., Path]) -> None:
    metadata, tensors = parts()
    with pytest.raises(UnsupportedModelError, match="weights of format int3 are not implemented"):
        open_checkpoint(write({**metadata, "packed": json.dumps({"w": ["int3", 20, 40]})}, tensors))


@pytest.mark.parametrize("shift", [1, 8, 32])
def test_data_that_do_not_start_at_64_bytes_are_refused(write: Callable[..., Path], shift: int) -> None:
    with pytest.raises(FormatError, match="not a multiple of 64"):
        open_checkpoint(write(*parts(), shift))


def test_a_file_cut_short_is_refused(write: Callable[..., Path]) -> None:
    path = write(*parts())
    path.write_bytes(path.read_bytes()[:-81])
    with pytest.raises(FormatError, match=r"cut short|end at byte"):
        open_checkpoint(path)
