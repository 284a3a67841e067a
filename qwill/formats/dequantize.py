"""From a checkpoint's bytes to float32: the plain float types, and GGUF's block formats by way of their modules.

Vectorised numpy; knows no file and no model. Work is cut into chunks whose temporaries stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats import blocks32, blocks256
from qwill.formats.bits import Bytes, Floats
from qwill.formats.decoded import Decoded
from qwill.formats.dtypes import BLOCKS, tensor_nbytes

__all__ = ["BLOCKS", "BLOCK_DECODERS", "DEQUANTIZABLE", "dequantize"]

_CHUNK = 2**16  # weights; their float32 are 256 KiB

Decoder = Callable[[Bytes, Floats], None]


def _plain(dtype: str) -> Decoder:
    def decode(blocks: Bytes, out: Floats) -> None:
        np.copyto(out, blocks.view(dtype))

    return decode


def _bf16(blocks: Bytes, out: Floats) -> None:
    # A bfloat16 is the upper half of a float32.
    bits = out.view(np.uint32)
    np.copyto(bits, blocks.view("<u2"))
    np.left_shift(bits, 16, out=bits)


def _quantized(decode_blocks: Callable[[Bytes], Decoded]) -> Decoder:
    return lambda blocks, out: decode_blocks(blocks).write(out)


BLOCK_DECODERS: dict[str, Callable[[Bytes], Decoded]] = {
    "Q4_0": blocks32.q4_0,
    "Q4_1": blocks32.q4_1,
    "Q5_0": blocks32.q5_0,
    "Q5_1": blocks32.q5_1,
    "Q8_0": blocks32.q8_0,
    "Q2_K": blocks256.q2_k,
    "Q3_K": blocks256.q3_k,
    "Q4_K": blocks256.q4_k,
    "Q5_K": blocks256.q5_k,
    "Q6_K": blocks256.q6_k,
}
"""Quantized type -> (n, block bytes) uint8 to n decoded blocks."""

_DECODERS: dict[str, Decoder] = {
    "F32": _plain("<f4"),
    "F16": _plain("<f2"),
    "BF16": _bf16,
    **{name: _quantized(decode_blocks) for name, decode_blocks in BLOCK_DECODERS.items()},
}

DEQUANTIZABLE = frozenset(_DECODERS)


def dequantize(
    raw: npt.NDArray[np.uint8],
    dtype: str,
    shape: Sequence[int],
    *,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Decode a tensor, or any whole rows of one.

    Args:
        raw: (nbytes,) uint8, contiguous; what `Checkpoint.raw` returns.
        dtype: one of `DEQUANTIZABLE`.
        shape: PyTorch order.
        out: where to write: C-contiguous float32 of this shape. By default a new array.

    Returns:
        float32 of `shape`; the same bits as the `gguf` package computes (a NaN may differ in its payload).

    Raises:
        UnsupportedModelError: for a type that is not a float or quantized float that qwill implements.
        FormatError: when the bytes are not as many as shape and type need.
    """
    if dtype not in _DECODERS:
        raise UnsupportedModelError(
            f"tensors of type {dtype:.40} are not implemented", hint="implemented: " + ", ".join(_DECODERS)
        )
    elements, block_bytes = BLOCKS[dtype]
    if raw.size != tensor_nbytes(dtype, shape):
        raise FormatError(f"{raw.size} bytes are not a tensor of type {dtype} and shape {list(shape)}")
    if out is None:
        out = np.empty(tuple(shape), dtype=np.float32)
    elif out.dtype != np.float32 or out.shape != tuple(shape) or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float32 of shape {tuple(shape)}, not {out.dtype} {out.shape}")
    step = _CHUNK // elements
    blocks, weights = raw.reshape(-1, block_bytes), out.reshape(-1, elements)
    # Scales may be infinite or NaN in a damaged file: that is for `verify` to say, and no reason for a warning here.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            _DECODERS[dtype](blocks[start : start + step], weights[start : start + step])
    return out
