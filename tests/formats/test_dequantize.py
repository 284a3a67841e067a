"""dequantize against the gguf package, bit for bit, on random and extreme blocks of every type."""

from __future__ import annotations

import time

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as reference

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.dequantize import BLOCKS, DEQUANTIZABLE, dequantize

ROWS, COLUMNS = 300, 512  # more than one chunk
TYPES = sorted(DEQUANTIZABLE)


def random_bytes(dtype: str, seed: int = 0) -> np.ndarray:
    """(ROWS, bytes of a row): every bit pattern, so also scales that are infinite, NaN, subnormal or negative."""
    elements, block_bytes = BLOCKS[dtype]
    return np.random.default_rng(seed).integers(0, 256, (ROWS, COLUMNS // elements * block_bytes), dtype=np.uint8)


def expected(raw: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(reference(raw, gguf.GGMLQuantizationType[dtype]), dtype=np.float32)


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


def test_every_type_of_the_first_release_is_there() -> None:
    assert set(TYPES) == {
        *("F32", "F16", "BF16"),
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    }
    sizes = {name: tuple(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]) for name in TYPES}
    assert {name: BLOCKS[name] for name in TYPES} == sizes


@pytest.mark.parametrize("dtype", TYPES)
def test_random_blocks_equal_the_reference_bit_for_bit(dtype: str) -> None:
    raw = random_bytes(dtype)
    assert_same_bits(dequantize(raw.ravel(), dtype, (ROWS, COLUMNS)), expected(raw, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0x80, 0x7B, 0xFB, 0x01])
def test_extreme_blocks_equal_the_reference(dtype: str, fill: int) -> None:
    raw = np.full_like(random_bytes(dtype), fill)
    assert_same_bits(dequantize(raw.ravel(), dtype, (ROWS, COLUMNS)), expected(raw, dtype))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_that_the_reference_quantized_come_back(dtype: str) -> None:
    weights = np.random.default_rng(1).standard_normal((4, 64), dtype=np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[dtype])
    assert np.abs(dequantize(raw.ravel(), dtype, (4, 64)) - weights).max() < 0.3


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_of_out_is_written_in_place(dtype: str) -> None:
    raw = random_bytes(dtype)
    plain = dequantize(raw.ravel(), dtype, (ROWS, COLUMNS))
    out = np.full((ROWS, COLUMNS), np.float32(12345.678))
    assert dequantize(raw.ravel(), dtype, (ROWS, COLUMNS), out=out) is out
    assert_same_bits(out, plain)


def test_rows_can_be_decoded_alone() -> None:
    raw = random_bytes("Q6_K")
    whole = dequantize(raw.ravel(), "Q6_K", (ROWS, COLUMNS))
    assert_same_bits(dequantize(raw[7:9].ravel(), "Q6_K", (2, COLUMNS)), whole[7:9])


def test_unaligned_bytes_are_decoded() -> None:
    data = np.zeros(41, np.uint8)
    data[1:] = np.arange(10, dtype="<f4").view(np.uint8)
    assert dequantize(data[1:], "F32", (10,)).tolist() == list(range(10))


@pytest.mark.parametrize("shape", [(0, 32), (0,)])
def test_empty_tensor_is_empty(shape: tuple[int, ...]) -> None:
    assert dequantize(np.empty(0, np.uint8), "Q8_0", shape).shape == shape


@pytest.mark.parametrize("dtype", ["I64", "BOOL", "F8_E4M3", "IQ4_XS"])
def test_other_types_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(UnsupportedModelError, match=dtype):
        dequantize(np.zeros(8, np.uint8), dtype, (1,))


def test_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(FormatError, match="33 bytes are not a tensor of type Q8_0"):
        dequantize(np.zeros(33, np.uint8), "Q8_0", (32,))


@pytest.mark.parametrize(
    "out", [np.empty((2, 32), np.float64), np.empty((1, 64), np.float32), np.empty((2, 64), np.float32)[:, ::2]]
)
def test_unfit_out_is_refused(out: np.ndarray) -> None:
    with pytest.raises(ValueError, match="out must be C-contiguous float32"):
        dequantize(np.zeros(68, np.uint8), "Q8_0", (2, 32), out=out)


@pytest.mark.parametrize("dtype", TYPES)
def test_decoding_is_fast_enough_to_load_a_model(dtype: str) -> None:
    # On one idle core: 200 to 900 million weights a second. The floor leaves room for a busy machine.
    raw = np.tile(random_bytes(dtype), (14, 1)).ravel()
    out = np.empty((14 * ROWS, COLUMNS), np.float32)
    start = time.process_time()
    dequantize(raw, dtype, out.shape, out=out)
    assert out.size / (time.process_time() - start) > 20e6
