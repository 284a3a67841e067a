"""4 bits: the error beside the gguf package's 4-bit types and a search in float64, and what is refused."""

from __future__ import annotations

import time

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qwill.errors import WeightsError
from qwill.quantization import FORMATS, pack, quantize_int4, unpack, values_of

INT4 = FORMATS["uint4_super"]


def weights(kind: str) -> torch.Tensor:
    """(64, 512) of one distribution: as weights are, with outliers, all of one sign, of very different rows."""
    random = torch.Generator().manual_seed(5)
    normal = torch.randn(64, 512, generator=random)
    return {
        "normal": normal * 0.02,
        "outliers": normal * torch.where(torch.rand(64, 512, generator=random) < 0.01, 8, 1),
        "positive": normal.abs() + 0.5,
        "rows": normal * torch.logspace(-4, 2, 64)[:, None],
    }[kind]


def error(weight: torch.Tensor, values: torch.Tensor) -> float:
    return float((values - weight).norm() / weight.norm())


def llama_q4(weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


@pytest.mark.parametrize("kind", ["normal", "outliers", "positive", "rows"])
def test_the_error_is_well_below_that_of_q4_1(kind: str) -> None:
    # Q4_1 takes 5 bits a weight, this takes 4.625.
    weight = weights(kind)
    theirs = error(weight, llama_q4(weight, gguf.GGMLQuantizationType.Q4_1))
    assert error(weight, values_of(quantize_int4(weight), INT4)) < 0.93 * theirs


def test_the_error_is_near_the_best_that_a_fine_search_finds() -> None:
    weight = weights("normal")[:16].double()
    groups = weight.view(-1, 32)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    best = torch.full((len(groups),), float("inf"), dtype=torch.float64)
    for factor in np.linspace(0.75, 1.1, 36):
        for shift in np.linspace(-0.1, 0.1, 21):
            scale, minimum = (high - low) * factor / 15, low + (high - low) * (shift + (1 - factor) / 2)
            codes = ((groups - minimum) / scale).round().clamp(0, 15)
            best = torch.minimum(best, ((codes * scale + minimum - groups) ** 2).sum(1))
    ours = ((values_of(quantize_int4(weight.float()), INT4) - weight) ** 2).sum()
    assert float(ours) < 1.1 * float(best.sum())


@given(rows=st.integers(1, 20), columns=st.integers(1, 600), power=st.integers(-4, 4))
def test_matrices_of_any_size_and_scale_are_quantized(rows: int, columns: int, power: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 10.0**power
    codes = quantize_int4(weight)
    assert torch.equal(unpack(pack(codes, INT4), columns).codes, codes.codes)
    spread = weight.amax(1, keepdim=True) - weight.amin(1, keepdim=True)
    assert ((values_of(codes, INT4) - weight).abs() <= 0.06 * spread + 0.01 * weight.abs() + 1e-6).all()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    weight = torch.randn(700, 320)
    whole = quantize_int4(weight)
    alone = quantize_int4(weight[650:667])
    assert torch.equal(whole.codes[650:667], alone.codes)
    assert torch.equal(whole.super_minima[650:667], alone.super_minima)


def test_equal_weights_keep_their_value() -> None:
    for value in (0.0, 1.0, -0.25, 1e-3):
        values = values_of(quantize_int4(torch.full((3, 300), value)), INT4)
        assert torch.allclose(values, torch.full((3, 300), value), rtol=5e-3, atol=0)


def test_a_zero_group_beside_others_is_zero() -> None:
    weight = torch.randn(2, 256)
    weight[:, 64:96] = 0
    assert not values_of(quantize_int4(weight), INT4)[:, 64:96].any()


def test_tiny_and_large_weights_are_quantized() -> None:
    for scale in (1e-6, 1e-5, 1e4):
        weight = torch.randn(4, 256) * scale
        assert error(weight, values_of(quantize_int4(weight), INT4)) < (0.09 if scale > 1e-6 else 0.2)


@pytest.mark.parametrize("columns", [0, 64])
def test_an_empty_matrix_has_no_codes(columns: int) -> None:
    assert quantize_int4(torch.zeros(64 - columns, columns)).codes.numel() == 0


def test_narrow_floats_are_quantized_like_their_values() -> None:
    weight = torch.randn(5, 70).bfloat16()
    assert torch.equal(quantize_int4(weight).codes, quantize_int4(weight.float()).codes)


@pytest.mark.parametrize(("bad", "message"), [(float("nan"), "NaN"), (float("-inf"), "inf"), (1e30, "too large")])
def test_what_is_no_weight_is_refused(bad: float, message: str) -> None:
    weight = torch.zeros(40, 64)
    weight[33, 63] = bad
    with pytest.raises(WeightsError, match=message):
        quantize_int4(weight)


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(WeightsError, match="is not an fp32, bf16 or fp16 matrix"):
        quantize_int4(torch.zeros(4))


def test_quantizing_is_fast_enough_to_load_a_model() -> None:
    # On one idle core: some 40 million weights a second. The floor leaves room for a busy machine.
    weight = torch.randn(1024, 1024)
    start = time.process_time()
    quantize_int4(weight)
    assert weight.numel() / (time.process_time() - start) > 2e6
