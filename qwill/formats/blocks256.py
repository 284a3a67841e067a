"""GGUF's "K" block formats: 256 weights in groups of 16 or 32, whose scales (and minimums) are themselves quantized.

Each function decodes (n, block bytes) uint8. Knows nothing of files. A minimum that is subtracted changes its sign.
Layouts are those of ggml's block structures. Where q is packed, a run of bytes holds several runs of weights: the
lowest bits are the first run, the next bits the one after it, and so on.
"""

from __future__ import annotations

import numpy as np

from qwill.formats.bits import Bytes, half, unpack
from qwill.formats.decoded import Decoded, SmallNumbers

__all__ = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]


def _scales_6bit(packed: Bytes) -> tuple[SmallNumbers, SmallNumbers]:
    """(n, 12) bytes -> eight 6-bit scales and eight 6-bit minimums, (n, 8) each.

    Bytes 0–3: scales 0–3 in six bits, and above them the upper two bits of scales 4–7. Bytes 4–7: the same of the
    minimums. Bytes 8–11: the lower four bits of scales 4–7 and, in the high halves, of minimums 4–7.
    """
    words = np.ascontiguousarray(packed).view("<u4")  # four 6-bit numbers, or eight 4-bit ones, in each
    first, second, low = words[:, :1], words[:, 1:2], words[:, 2:]
    scales = np.hstack((first & 0x3F3F3F3F, (low & 0x0F0F0F0F) | (first >> 2 & 0x30303030)))
    minimums = np.hstack((second & 0x3F3F3F3F, (low >> 4 & 0x0F0F0F0F) | (second >> 2 & 0x30303030)))
    return scales.view(np.int8), minimums.view(np.int8)


def q2_k(blocks: Bytes) -> Decoded:
    """16 × (4-bit scale, 4-bit minimum above it), 64 × four 2-bit q in runs of 32, scale fp16, minimum fp16.

    Groups of 16; weight = (scale × group scale) × q − (minimum × group minimum).
    """
    q = unpack(blocks[:, 16:80], 32, 2).view(np.int8)
    scales, minimums = (blocks[:, :16] & 15).view(np.int8), (blocks[:, :16] >> 4).view(np.int8)
    return Decoded(q, scales, minimums, half(blocks, 80), -half(blocks, 82))


def q3_k(blocks: Bytes) -> Decoded:
    """32 bytes of third bits (bit b of byte j: weight 32 b + j), 64 × four 2-bit q in runs of 32, 12 of scales, fp16.

    Groups of 16; weight = (scale × (group scale − 32)) × (q − 4), where the third bit of q is worth 4.
    The 6-bit group scales: bytes 0–7 hold the low four bits of scales 0–7 and, in the high halves, of 8–15; bytes 8–11
    hold the upper two bits in runs of four.
    """
    packed = blocks[:, 96:108]
    low = unpack(packed[:, :8], 8, 4)
    high = unpack(packed[:, 8:], 4, 2)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    q = unpack(blocks[:, 32:96], 32, 2) | unpack(blocks[:, :32], 32, 1) << 2
    return Decoded(q.view(np.int8) - np.int8(4), scales, super_scale=half(blocks, 108))


def q4_k(blocks: Bytes) -> Decoded:
    """scale fp16, minimum fp16, 12 bytes of 6-bit group scales and minimums, 128 × two 4-bit q in runs of 32.

    Groups of 32; weight = (scale × group scale) × q − (minimum × group minimum).
    """
    scales, minimums = _scales_6bit(blocks[:, 4:16])
    q = unpack(blocks[:, 16:], 32, 4).view(np.int8)
    return Decoded(q, scales, minimums, half(blocks, 0), -half(blocks, 2))


def q5_k(blocks: Bytes) -> Decoded:
    """As Q4_K, with 32 bytes of fifth bits (bit b of byte j: weight 32 b + j) before the 4-bit q."""
    scales, minimums = _scales_6bit(blocks[:, 4:16])
    fifth = unpack(blocks[:, 16:48], 32, 1)
    q = unpack(blocks[:, 48:], 32, 4) | fifth << 4
    return Decoded(q.view(np.int8), scales, minimums, half(blocks, 0), -half(blocks, 2))


def q6_k(blocks: Bytes) -> Decoded:
    """128 × two 4-bit low parts of q in runs of 64, 64 × four 2-bit high parts in runs of 32, 16 × int8 scale, fp16.

    Groups of 16; weight = (scale × group scale) × (q − 32).
    """
    low = unpack(blocks[:, :128], 64, 4)
    high = unpack(blocks[:, 128:192], 32, 2)
    q = (low | high << 4).view(np.int8) - np.int8(32)
    return Decoded(q, blocks[:, 192:208].view(np.int8), super_scale=half(blocks, 208))
