"""8 bits: the formula, in numpy; the error, beside the gguf package's Q8_0; and what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qwill.errors import WeightsError
from qwill.quantization import FORMATS, pack, quantize_int8, unpack, values_of

INT8 = FORMATS["int8"]


def by_formula(group: np.ndarray) -> tuple[np.float16, list[int]]:
    """Scale and codes of one group, each step rounded by numpy."""
    scale = np.float16(np.abs(group).max() / np.float32(127))
    if scale == 0:
        return scale, [128] * len(group)
    return scale, [int(np.clip(np.rint(w / np.float32(scale)), -127, 127)) + 128 for w in group]


@given(rows=st.integers(1, 20), columns=st.integers(1, 100), seed=st.integers(0, 99))
def test_codes_and_scales_follow_the_formula(rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(10.0 ** random.integers(-6, 4))
    codes = quantize_int8(torch.from_numpy(weight))
    for row in range(rows):
        for group in range(-(-columns // 32)):
            scale, numbers = by_formula(weight[row, 32 * group : 32 * group + 32])
            assert codes.scales[row, group].item() == scale
            assert codes.codes[row, 32 * group : 32 * group + 32].tolist() == numbers


def test_halves_go_to_the_even_code() -> None:
    codes = quantize_int8(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]))
    assert (codes.codes.int() - 128).tolist() == [[127, 0, 2, 2, 0, -2]]


def test_the_error_is_that_of_q8_0() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    kind = gguf.GGMLQuantizationType.Q8_0
    theirs = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))
    ours = values_of(quantize_int8(weight), INT8)
    assert (ours - weight).norm() <= (theirs - weight).norm() * 1.001


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_quantized_like_their_values(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 70).to(dtype)
    narrow, wide = quantize_int8(weight), quantize_int8(weight.float())
    assert torch.equal(narrow.codes, wide.codes)
    assert torch.equal(narrow.scales, wide.scales)


def test_zeros_stay_zeros() -> None:
    for weight in (torch.zeros(3, 40), torch.full((3, 40), 1e-9), torch.zeros(3, 0), torch.zeros(0, 40)):
        codes = quantize_int8(weight)
        assert not values_of(codes, INT8).any()
        assert torch.equal(unpack(pack(codes, INT8), weight.shape[1]).codes, codes.codes)


def test_quantized_twice_is_quantized_once() -> None:
    once = values_of(quantize_int8(torch.randn(8, 64)), INT8)
    assert torch.allclose(values_of(quantize_int8(once), INT8), once, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("bad", "message"), [(float("nan"), "NaN"), (float("inf"), "infinite"), (1e30, "too large")])
def test_what_is_no_weight_is_refused(bad: float, message: str) -> None:
    weight = torch.zeros(40, 64)
    weight[33, 63] = bad
    with pytest.raises(WeightsError, match=message):
        quantize_int8(weight)


@pytest.mark.parametrize("weight", [torch.zeros(4), torch.zeros(2, 2, dtype=torch.int8), torch.zeros(2, 2).double()])
def test_what_is_no_matrix_is_refused(weight: torch.Tensor) -> None:
    with pytest.raises(WeightsError, match="is not an fp32, bf16 or fp16 matrix"):
        quantize_int8(weight)
