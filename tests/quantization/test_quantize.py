"""Floats to packed parts: each matrix in its format, the same whether it is taken in pieces or whole."""

from __future__ import annotations

import pytest
import torch

from qwill.errors import WeightsError
from qwill.quantization import FORMATS, PackedWeight, pack, quantize_int4, quantize_int8, quantize_weight
from qwill.quantization.quantize import QUANTS, is_sensitive, quantized_format


def test_sensitive_matrices_keep_8_bits() -> None:
    assert quantized_format("int4", sensitive=False) == FORMATS["uint4_super"]
    assert quantized_format("int4", sensitive=True) == FORMATS["int8"]
    assert quantized_format("int8", sensitive=False) == FORMATS["int8"]


@pytest.mark.parametrize("quant", QUANTS)
def test_a_matrix_of_several_pieces_is_the_same_as_a_whole_one(quant: str) -> None:
    weight = torch.randn(1100, 4096).bfloat16()
    part = quantize_weight(weight, quant, sensitive=False)
    codes = quantize_int4(weight) if quant == "int4" else quantize_int8(weight)
    assert part.rows == 1100
    assert torch.equal(part.data, pack(codes, part.format).data)


def test_the_packed_part_holds_nearly_the_weights() -> None:
    weight = torch.randn(33, 100)
    values = PackedWeight(100, (quantize_weight(weight, "int4", sensitive=True),)).dequantize()
    assert (values - weight).abs().max() < 0.03


def test_an_empty_matrix_is_an_empty_part() -> None:
    assert quantize_weight(torch.zeros(0, 64), "int4", sensitive=False).data.numel() == 0


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(WeightsError, match="there is no quantization 'int3'"):
        quantize_weight(torch.zeros(2, 32), "int3", sensitive=False)


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("layers.13.self_attn.v_proj.weight", True),
        ("layers.13.self_attn.q_proj.weight", False),
        ("layers.0.mlp.gate_proj.weight", False),
        ("layers.27.mlp.gate_proj.weight", True),
        ("embed_tokens.weight", False),
        ("layers.1.self_attn.o_proj.weight", False),
    ],
)
def test_the_rule_goes_by_kind_and_layer(name: str, sensitive: bool) -> None:
    assert is_sensitive(f"model.{name}", 28) == sensitive


def test_some_of_the_down_projections_keep_8_bits() -> None:
    kept = [layer for layer in range(28) if is_sensitive(f"model.layers.{layer}.mlp.down_proj.weight", 28)]
    assert kept == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 25, 26, 27]


def test_without_the_number_of_layers_only_the_kind_counts() -> None:
    assert is_sensitive("model.layers.27.self_attn.v_proj.weight")
    assert not is_sensitive("model.layers.27.mlp.down_proj.weight")
    assert not is_sensitive("lm_head.weight", 28)
