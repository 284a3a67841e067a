"""Packed weights as matrices again: the formula of a format, in float64 and in the order of fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from qwill.quantization import FORMATS, Codes, PackedWeight, WeightFormat, pack, pack_dense

QUANTIZED = [name for name, format in FORMATS.items() if format.scales_per_group]


def by_formula(codes: Codes, format: WeightFormat) -> np.ndarray:
    """scale * (code - zero) + minimum in fp32, one weight after another."""
    f = np.float32
    rows, columns = codes.codes.shape
    out = np.empty((rows, columns), f)
    for row in range(rows):
        for column in range(columns):
            group = column * format.scales_per_group // 32
            scale, minimum = f(codes.scales[row, group]), f(0)
            if codes.super_scales is not None:
                scale = scale * f(codes.super_scales[row, column // 256])
            if codes.minima is not None:
                minimum = f(codes.minima[row, group])
            if codes.super_minima is not None:
                minimum = minimum * f(codes.super_minima[row, column // 256])
            out[row, column] = scale * f(int(codes.codes[row, column]) - format.zero) + minimum
    return out


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("rows", "columns"), [(5, 300), (17, 48)])
def test_dequantized_weights_follow_the_formula(
    name: str, rows: int, columns: int, make_codes: Callable[..., Codes]
) -> None:
    codes = make_codes(rows, columns, FORMATS[name])
    weight = PackedWeight(columns, (pack(codes, FORMATS[name]),))
    np.testing.assert_array_equal(weight.dequantize().numpy(), by_formula(codes, FORMATS[name]))


def test_parts_of_different_formats_stand_one_after_another(make_codes: Callable[..., Codes]) -> None:
    names = ["uint4_super", "int8_super16", "int8"]
    parts = [pack(make_codes(rows, 96, FORMATS[n]), FORMATS[n]) for rows, n in zip((20, 3, 16), names, strict=True)]
    dense = [torch.randn(4, 96).bfloat16(), torch.randn(1, 96)]
    weight = PackedWeight(96, (*parts, *(pack_dense(part) for part in dense)))
    assert weight.shape == (44, 96)
    whole = weight.dequantize()
    alone = [PackedWeight(96, (part,)).dequantize() for part in parts]
    assert torch.equal(whole, torch.cat([*alone, *(part.float() for part in dense)]))
    assert weight.nbytes == sum(part.data.numel() for part in weight.parts)
    assert weight.bits_per_weight == 8 * weight.nbytes / (44 * 96)


def test_a_weight_larger_than_one_piece_is_dequantized(make_codes: Callable[..., Codes]) -> None:
    format = FORMATS["int8"]
    codes = make_codes(1030, 1056, format)
    values = PackedWeight(1056, (pack(codes, format),)).dequantize()
    want = (codes.codes.double() - 128) * codes.scales.double().repeat_interleave(32, 1)
    assert torch.equal(values.double(), want)


def test_a_weight_without_rows_is_empty() -> None:
    assert PackedWeight(32, ()).dequantize().shape == (0, 32)
    assert PackedWeight(32, ()).bits_per_weight == 0
