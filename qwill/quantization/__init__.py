"""Quantized weights: how they are packed for the kernels, and how they are made.

Knows no model and no file. A matrix has N rows (outputs) and K columns (inputs). Inputs are taken in groups of 32, and
a weight is a small whole number, its code, times its group's scale:

    value = scale * (code - zero) + minimum

`formats` names the storage formats, `pack` puts codes in the order in which kernels read them, and
`gguf` repacks the quantized types of GGUF files without loss; `int8` and `int4` choose codes for floats.
"""

from __future__ import annotations

from qwill.formats.weight_formats import FORMATS, GROUP, PANEL_ROWS, RUN_GROUPS, WeightFormat
from qwill.quantization.gguf import GGUF_FORMATS, gguf_codes
from qwill.quantization.int4 import quantize_int4
from qwill.quantization.int8 import quantize_int8
from qwill.quantization.pack import Codes, PackedPart, pack, pack_dense, unpack, unpack_dense
from qwill.quantization.quantize import QUANTS, is_sensitive, quantize_weight, quantized_format
from qwill.quantization.weight import PackedWeight, unpacked_rows, values_of

__all__ = [
    "FORMATS",
    "GGUF_FORMATS",
    "GROUP",
    "PANEL_ROWS",
    "QUANTS",
    "RUN_GROUPS",
    "Codes",
    "PackedPart",
    "PackedWeight",
    "WeightFormat",
    "gguf_codes",
    "is_sensitive",
    "pack",
    "pack_dense",
    "quantize_int4",
    "quantize_int8",
    "quantize_weight",
    "quantized_format",
    "unpack",
    "unpack_dense",
    "unpacked_rows",
    "values_of",
]
