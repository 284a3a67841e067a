"""GGUF's simple block formats: 32 weights with one fp16 scale, and in the `_1` kinds one fp16 minimum.

Each function decodes (n, block bytes) uint8. Knows nothing of files.
Layouts are those of ggml's block structures; in the 4- and 5-bit kinds byte j holds weight j in its low and weight
j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from qwill.formats.bits import Bytes, half, unpack
from qwill.formats.decoded import Decoded

__all__ = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


# Eight bits of one byte -> eight bytes that are 16 where the bit is set, as one 64-bit item.
_FIFTH = (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << np.uint8(4)).view("u8")


def _fifth_bits(bits: Bytes) -> Bytes:
    """(n, 4) bytes, one bit for each weight -> (n, 32): 16 where the bit is set, else 0."""
    sixteens: Bytes = _FIFTH[bits, 0].view(np.uint8)
    return sixteens


def q4_0(blocks: Bytes) -> Decoded:
    """scale fp16, 16 × two 4-bit q; weight = scale × (q − 8)."""
    return Decoded(unpack(blocks[:, 2:], 16, 4).view(np.int8) - np.int8(8), half(blocks, 0))


def q4_1(blocks: Bytes) -> Decoded:
    """scale fp16, minimum fp16, 16 × two 4-bit q; weight = scale × q + minimum."""
    return Decoded(unpack(blocks[:, 4:], 16, 4).view(np.int8), half(blocks, 0), half(blocks, 2))


def q5_0(blocks: Bytes) -> Decoded:
    """scale fp16, 32 fifth bits, 16 × two 4-bit q; weight = scale × (q − 16)."""
    q = unpack(blocks[:, 6:], 16, 4) | _fifth_bits(blocks[:, 2:6])
    return Decoded(q.view(np.int8) - np.int8(16), half(blocks, 0))


def q5_1(blocks: Bytes) -> Decoded:
    """scale fp16, minimum fp16, 32 fifth bits, 16 × two 4-bit q; weight = scale × q + minimum."""
    q = unpack(blocks[:, 8:], 16, 4) | _fifth_bits(blocks[:, 4:8])
    return Decoded(q.view(np.int8), half(blocks, 0), half(blocks, 2))


def q8_0(blocks: Bytes) -> Decoded:
    """scale fp16, 32 × int8 q; weight = scale × q."""
    return Decoded(blocks[:, 2:].view(np.int8), half(blocks, 0))
