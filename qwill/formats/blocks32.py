"""GGUF's simple block formats: 32 weights with one fp16 scale, and in the `_1` kinds one fp16 minimum.

Each function decodes (n, block bytes) uint8 into (n, 32) float32, written into `out`. Knows nothing of files.
Layouts are those of ggml's block structures; in the 4- and 5-bit kinds byte j holds weight j in its low and weight
j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from qwill.formats.bits import Bytes, Floats, half, unpack

__all__ = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


# Eight bits of one byte -> eight bytes that are 16 where the bit is set, as one 64-bit item.
_FIFTH = (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << np.uint8(4)).view("u8")


def _fifth_bits(bits: Bytes) -> Bytes:
    """(n, 4) bytes, one bit for each weight -> (n, 32): 16 where the bit is set, else 0."""
    sixteens: Bytes = _FIFTH[bits, 0].view(np.uint8)
    return sixteens


def q4_0(blocks: Bytes, out: Floats) -> None:
    """scale fp16, 16 × two 4-bit q; weight = scale × (q − 8)."""
    np.copyto(out, unpack(blocks[:, 2:], 16, 4).view(np.int8) - np.int8(8))
    out *= half(blocks, 0)


def q4_1(blocks: Bytes, out: Floats) -> None:
    """scale fp16, minimum fp16, 16 × two 4-bit q; weight = scale × q + minimum."""
    np.copyto(out, unpack(blocks[:, 4:], 16, 4))
    out *= half(blocks, 0)
    out += half(blocks, 2)


def q5_0(blocks: Bytes, out: Floats) -> None:
    """scale fp16, 32 fifth bits, 16 × two 4-bit q; weight = scale × (q − 16)."""
    q = unpack(blocks[:, 6:], 16, 4) | _fifth_bits(blocks[:, 2:6])
    np.copyto(out, q.view(np.int8) - np.int8(16))
    out *= half(blocks, 0)


def q5_1(blocks: Bytes, out: Floats) -> None:
    """scale fp16, minimum fp16, 32 fifth bits, 16 × two 4-bit q; weight = scale × q + minimum."""
    np.copyto(out, unpack(blocks[:, 8:], 16, 4) | _fifth_bits(blocks[:, 4:8]))
    out *= half(blocks, 0)
    out += half(blocks, 2)


def q8_0(blocks: Bytes, out: Floats) -> None:
    """scale fp16, 32 × int8 q; weight = scale × q."""
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= half(blocks, 0)
