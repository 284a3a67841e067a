"""Blocks of 32 weights, built by hand from ggml's layout, so that a fault shared with the reference would show."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from qwill.formats.dequantize import dequantize

Q4 = [(3 * i) % 16 for i in range(32)]
Q5 = [(7 * i) % 32 for i in range(32)]
SCALE, MINIMUM = 0.5, -2.0


def nibbles(q: list[int]) -> bytes:
    return bytes((q[j] & 15) | (q[j + 16] & 15) << 4 for j in range(16))


def fifth_bits(q: list[int]) -> bytes:
    return struct.pack("<I", sum((q[j] >> 4) << j for j in range(32)))


BLOCKS = {
    "Q4_0": (struct.pack("<e", SCALE) + nibbles(Q4), [SCALE * (q - 8) for q in Q4]),
    "Q4_1": (struct.pack("<2e", SCALE, MINIMUM) + nibbles(Q4), [SCALE * q + MINIMUM for q in Q4]),
    "Q5_0": (struct.pack("<e", SCALE) + fifth_bits(Q5) + nibbles(Q5), [SCALE * (q - 16) for q in Q5]),
    "Q5_1": (struct.pack("<2e", SCALE, MINIMUM) + fifth_bits(Q5) + nibbles(Q5), [SCALE * q + MINIMUM for q in Q5]),
    "Q8_0": (struct.pack("<e32b", SCALE, *range(-16, 16)), [SCALE * q for q in range(-16, 16)]),
}


@pytest.mark.parametrize("dtype", BLOCKS)
def test_block_built_by_hand_is_decoded(dtype: str) -> None:
    block, weights = BLOCKS[dtype]
    assert dequantize(np.frombuffer(block, np.uint8), dtype, (32,)).tolist() == weights
