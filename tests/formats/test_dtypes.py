"""Sizes of tensors: against the reference packages, and shapes that cannot be."""

from __future__ import annotations

import gguf
import pytest

from qwill.formats.dtypes import BLOCKS, GGUF_TYPES, GGUF_UNSUPPORTED, tensor_nbytes


def test_gguf_types_and_sizes_are_those_of_the_gguf_package() -> None:
    for kind, name in GGUF_TYPES.items():
        assert gguf.GGMLQuantizationType(kind).name == name
        assert tuple(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]) == BLOCKS[name]


def test_every_type_that_the_gguf_package_knows_has_a_name_here() -> None:
    known = GGUF_TYPES | GGUF_UNSUPPORTED
    assert {int(kind): kind.name for kind in gguf.GGMLQuantizationType}.items() <= known.items()
    assert not GGUF_TYPES.keys() & GGUF_UNSUPPORTED.keys()


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("F32", [], 4),
        ("BF16", [2, 3], 12),
        ("Q4_K", [2, 512], 576),
        ("Q8_0", [0, 32], 0),
        ("Q8_0", [3, 0], 0),
        ("F4", [3, 2, 1], 3),
        ("F6_E2M3", [4], 3),
        ("U8", [2**63 - 1], 2**63 - 1),
    ],
)
def test_bytes_of_a_shape(dtype: str, shape: list[int], nbytes: int) -> None:
    assert tensor_nbytes(dtype, shape) == nbytes


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("U8", [2**63], "too large"),
        ("F32", [2**61], "too large"),
        ("F32", [2**32, 2**32], "too large"),
        ("Q8_0", [0, 2**62, 2**62], "too large"),
        ("Q8_0", [64, 16], "16 elements are not whole blocks of 32"),
        ("F4", [3], "3 elements are not whole blocks of 2"),
        ("F32", [1] * 33, "33 dimensions"),
    ],
)
def test_shape_that_cannot_be_is_refused(dtype: str, shape: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tensor_nbytes(dtype, shape)
