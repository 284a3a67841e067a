"""From a matrix of floats to a packed part in a format of our choice, some panels at a time.

int8    every matrix: a file of half the size of bf16, whose difference nobody notices
int4    4-bit codes, and int8 for the matrices that suffer most from 4 bits (`is_sensitive`)
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from qwill.errors import WeightsError
from qwill.formats.packed import QUANTS
from qwill.formats.weight_formats import FORMATS, PANEL_ROWS, WeightFormat
from qwill.quantization.checks import check_matrix
from qwill.quantization.int4 import quantize_int4
from qwill.quantization.int8 import quantize_int8
from qwill.quantization.pack import PackedPart, pack

__all__ = ["QUANTS", "is_sensitive", "quantize_weight", "quantized_format"]

PIECE = 1 << 22
"""Weights whose codes are held at a time before they are packed."""


def is_sensitive(name: str, num_layers: int | None = None) -> bool:
    """Whether the tensor of this checkpoint name keeps 8 bits where the rest gets 4.

    Measured on SmolLM2-135M, as the fall of the KL divergence for each share of the weights that is kept in 8 bits:
    v_proj 3.7, the last layer 0.9, down_proj of the first and last eighth 0.9 and of every third layer between 0.8;
    embedding, q, k 0.3, o_proj 0.2, gate and up 0.1. All that is above 0.5 keeps 8 bits: 5.2 bits per weight there
    and in Qwen3-0.6B. benchmarks/README.md has what it comes to beside llama.cpp's formats.

    Args:
        num_layers: how many the model has; where it is not known, only v_proj counts.
    """
    if ".v_proj." in name:
        return True
    found = re.match(r"model\.layers\.(\d+)\.", name)
    if found is None or num_layers is None:
        return False
    layer, eighth = int(found[1]), num_layers // 8
    chosen = layer < eighth or layer >= num_layers - eighth or (layer - eighth) % 3 == 2
    return layer == num_layers - 1 or (chosen and ".down_proj." in name)


def quantized_format(quant: str, *, sensitive: bool) -> WeightFormat:
    """The format that a matrix gets.

    Raises:
        WeightsError: `quant` is not one of `QUANTS`.
    """
    if quant not in QUANTS:
        raise WeightsError(f"there is no quantization {quant!r:.60}", hint="known: " + ", ".join(QUANTS))
    return FORMATS["int8" if quant == "int8" or sensitive else "uint4_super"]


def quantize_weight(weight: Tensor, quant: str, *, sensitive: bool) -> PackedPart:
    """Quantize and pack a matrix, (N, K) in fp32, bf16 or fp16.

    Raises:
        WeightsError: not such a matrix, an unknown `quant`, or weights that are not finite or too large.
    """
    format = quantized_format(quant, sensitive=sensitive)
    check_matrix(weight)
    rows, columns = weight.shape
    quantize = quantize_int4 if format.bits == 4 else quantize_int8
    data = torch.empty(format.nbytes(rows, columns), dtype=torch.uint8)
    step = max(1, PIECE // (PANEL_ROWS * max(columns, 1))) * PANEL_ROWS
    at = 0
    for start in range(0, rows, step):
        part = pack(quantize(weight[start : start + step]), format)
        data[at : at + part.data.numel()] = part.data
        at += part.data.numel()
    return PackedPart(format, rows, data)
