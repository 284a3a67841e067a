"""Number formats that a checkpoint may hold: how many elements share a block, and the block's bytes.

Knows names and sizes only; how a block is decoded is in dequantize.py.
Sources: the safetensors format description; the GGUF description and ggml's block layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["BLOCKS", "GGUF_TYPES", "GGUF_UNSUPPORTED", "MAX_DIMS", "SAFETENSORS_TYPES", "tensor_nbytes"]

# dtype -> (elements in a block, bytes of a block)
BLOCKS: dict[str, tuple[int, int]] = {
    "F64": (1, 8), "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
    "I64": (1, 8), "I32": (1, 4), "I16": (1, 2), "I8": (1, 1),
    "U64": (1, 8), "U32": (1, 4), "U16": (1, 2), "U8": (1, 1), "BOOL": (1, 1), "C64": (1, 8),
    "F8_E4M3": (1, 1), "F8_E5M2": (1, 1), "F8_E8M0": (1, 1), "F8_E4M3FNUZ": (1, 1), "F8_E5M2FNUZ": (1, 1),
    "F6_E2M3": (4, 3), "F6_E3M2": (4, 3), "F4": (2, 1),
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip

_QUANTIZED = frozenset(name for name in BLOCKS if name.startswith("Q"))

SAFETENSORS_TYPES = frozenset(BLOCKS) - _QUANTIZED

GGUF_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 30: "BF16", 28: "F64", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
}  # fmt: skip

# Types that exist, so that the refusal can say their names.
GGUF_UNSUPPORTED: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
    33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
    39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

MAX_DIMS = 32
_MAX_BYTES = 2**63 - 1


def tensor_nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor. Quantized rows (the last dimension) must be whole blocks; other types, whole bytes.

    Args:
        dtype: a key of `BLOCKS`.
        shape: at most `MAX_DIMS` sizes, PyTorch order, each at least 0.

    Raises:
        ValueError: in words, when the sizes cannot be: too many dimensions, too large, or a broken block.
    """
    if len(shape) > MAX_DIMS:
        raise ValueError(f"{len(shape)} dimensions; at most {MAX_DIMS} are allowed")
    # Zero sizes are left out, so that [2**62, 2**62, 0] is refused as it is in the reference readers.
    extent = math.prod(size for size in shape if size)
    elements, block_bytes = BLOCKS[dtype]
    if extent > _MAX_BYTES or extent // elements * block_bytes > _MAX_BYTES:
        raise ValueError(f"{dtype} of shape {list(shape)} is too large for any file")
    run = shape[-1] if shape and dtype in _QUANTIZED else extent
    if run % elements:
        raise ValueError(f"{dtype} of shape {list(shape)}: {run} elements are not whole blocks of {elements}")
    return 0 if 0 in shape else extent // elements * block_bytes
