"""The emulation of integer kernels is itself judged by float64 arithmetic on dequantized weights."""

from __future__ import annotations

import pytest
import torch

from qwill.ops.quantized import packed_linear, packed_rows, quantize_activations
from qwill.quantization import FORMATS, PackedWeight


@pytest.mark.parametrize("format", FORMATS)
def test_a_product_differs_from_float64_by_the_rounding_of_activations_only(packed, format: str) -> None:  # type: ignore[no-untyped-def]
    weight: PackedWeight = packed(100, (format, 24))
    x = torch.randn(6, 100)
    bias = torch.randn(24)
    codes, scales = quantize_activations(x)
    rounded = x if FORMATS[format].is_dense else (codes * scales[..., None]).flatten(1)[:, :100]
    want = rounded.double() @ weight.dequantize().double().T + bias
    torch.testing.assert_close(
        packed_linear(x, weight, bias).double(), want, rtol=1e-5, atol=float(want.abs().max()) * 1e-6
    )


def test_rounded_activations_are_within_half_a_step() -> None:
    x = torch.randn(5, 77) * 10
    codes, scales = quantize_activations(x)
    assert codes.abs().max() == 127
    back = (codes * scales[..., None]).flatten(1)[:, :77]
    steps = scales.repeat_interleave(32, dim=1)[:, :77]
    assert ((back - x).abs() <= steps * 0.5001).all()


def test_a_group_with_a_value_that_is_not_finite_has_no_scale() -> None:
    x = torch.zeros(1, 96)
    x[0, 40] = torch.inf
    _, scales = quantize_activations(x)
    assert scales.isnan().tolist() == [[False, True, False]]


def test_rows_are_the_dequantized_ones(packed) -> None:  # type: ignore[no-untyped-def]
    weight: PackedWeight = packed(40, ("int8", 10))
    assert torch.equal(packed_rows(torch.tensor([9, 0]), weight), weight.dequantize()[[9, 0]])
