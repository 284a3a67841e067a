"""GGUF's types repacked: the same weights to the bit as the gguf package and as our own dequantization."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as reference

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.dequantize import BLOCKS, dequantize
from qwill.quantization import PackedWeight, pack, unpack
from qwill.quantization.gguf import GGUF_FORMATS, gguf_codes

ROWS, COLUMNS = 50, 512 + 256


def random_bytes(dtype: str, rows: int = ROWS) -> np.ndarray:
    """(rows, bytes of a row): every bit pattern, but with scales that are finite."""
    elements, block_bytes = BLOCKS[dtype]
    raw = np.random.default_rng(1).integers(0, 256, (rows, COLUMNS // elements, block_bytes), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
    for at in halves.get(dtype, (0, 2)):
        raw[..., at + 1] &= 0xBF  # an exponent of at most 15
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("dtype", GGUF_FORMATS)
def test_repacked_weights_are_the_same_to_the_bit(dtype: str) -> None:
    raw = random_bytes(dtype)
    codes, format = gguf_codes(raw.ravel(), dtype, ROWS, COLUMNS)
    ours = PackedWeight(COLUMNS, (pack(codes, format),)).dequantize().numpy()
    theirs = np.asarray(reference(raw, gguf.GGMLQuantizationType[dtype]), dtype=np.float32)
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    np.testing.assert_array_equal(ours, dequantize(raw.ravel(), dtype, (ROWS, COLUMNS)))


@pytest.mark.parametrize("dtype", GGUF_FORMATS)
def test_some_rows_are_repacked_alone(dtype: str) -> None:
    raw = random_bytes(dtype)
    whole, format = gguf_codes(raw.ravel(), dtype, ROWS, COLUMNS)
    some, _ = gguf_codes(raw[16:33].ravel(), dtype, 17, COLUMNS)
    unpacked = unpack(pack(some, format), COLUMNS)
    assert unpacked.codes.tolist() == whole.codes[16:33].tolist()
    assert unpacked.scales.tolist() == whole.scales[16:33].tolist()


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_the_gguf_package_quantized_is_repacked(dtype: str) -> None:
    weights = np.random.default_rng(1).standard_normal((7, 96), dtype=np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[dtype])
    codes, format = gguf_codes(raw.ravel(), dtype, 7, 96)
    ours = PackedWeight(96, (pack(codes, format),)).dequantize().numpy()
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype]))


def test_types_without_codes_are_refused_by_name() -> None:
    for dtype in ("F32", "BF16", "IQ4_XS"):
        with pytest.raises(UnsupportedModelError, match=dtype):
            gguf_codes(np.zeros(128, np.uint8), dtype, 1, 32)


def test_a_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(FormatError, match="35 bytes are not a tensor of type Q8_0"):
        gguf_codes(np.zeros(35, np.uint8), "Q8_0", 1, 32)
    with pytest.raises(FormatError, match="33 elements are not whole blocks"):
        gguf_codes(np.zeros(34, np.uint8), "Q8_0", 1, 33)


def test_no_rows_are_no_codes() -> None:
    codes, _ = gguf_codes(np.zeros(0, np.uint8), "Q4_K", 0, 256)
    assert codes.codes.shape == (0, 256)
