"""Blocks of 256 weights, built by hand from ggml's layout, so that a fault shared with the reference would show."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from qwill.formats.dequantize import dequantize

D, M = 0.25, 0.5  # the block's fp16 scale and minimum
SCALES_8 = [5, 63, 17, 32, 1, 40, 62, 0]
MINIMUMS_8 = [0, 33, 8, 63, 2, 48, 15, 16]
SCALES_16 = [(5 * i + 3) % 64 for i in range(16)]


def numbers(bits: int) -> list[int]:
    return [(11 * i + i // 7) % 2**bits for i in range(256)]


def packed(q: list[int], run: int, bits: int) -> bytes:
    """Byte j of a run: the weights j, j + run, j + 2 run, … of the run's span, lowest bits first."""
    span = run * 8 // bits
    return bytes(
        sum((q[start + j + run * i] & (2**bits - 1)) << (bits * i) for i in range(8 // bits))
        for start in range(0, len(q), span)
        for j in range(run)
    )


def scales_6bit() -> bytes:
    first = [SCALES_8[j] | (SCALES_8[j + 4] >> 4) << 6 for j in range(4)]
    second = [MINIMUMS_8[j] | (MINIMUMS_8[j + 4] >> 4) << 6 for j in range(4)]
    low = [(SCALES_8[j + 4] & 15) | (MINIMUMS_8[j + 4] & 15) << 4 for j in range(4)]
    return bytes(first + second + low)


def q2_k() -> tuple[bytes, list[float]]:
    q = numbers(2)
    scales, minimums = [s % 16 for s in SCALES_16], [(s * 3) % 16 for s in SCALES_16]
    head = bytes(s | m << 4 for s, m in zip(scales, minimums, strict=True))
    block = head + packed(q, 32, 2) + struct.pack("<2e", D, M)
    return block, [D * scales[i // 16] * q[i] - M * minimums[i // 16] for i in range(256)]


def q3_k() -> tuple[bytes, list[float]]:
    q = numbers(3)
    low = bytes((SCALES_16[j] & 15) | (SCALES_16[j + 8] & 15) << 4 for j in range(8))
    high = bytes(sum((SCALES_16[j + 4 * i] >> 4) << (2 * i) for i in range(4)) for j in range(4))
    block = packed([v >> 2 for v in q], 32, 1) + packed(q, 32, 2) + low + high + struct.pack("<e", D)
    return block, [D * (SCALES_16[i // 16] - 32) * (q[i] - 4) for i in range(256)]


def q4_k() -> tuple[bytes, list[float]]:
    q = numbers(4)
    block = struct.pack("<2e", D, M) + scales_6bit() + packed(q, 32, 4)
    return block, [D * SCALES_8[i // 32] * q[i] - M * MINIMUMS_8[i // 32] for i in range(256)]


def q5_k() -> tuple[bytes, list[float]]:
    q = numbers(5)
    block = struct.pack("<2e", D, M) + scales_6bit() + packed([v >> 4 for v in q], 32, 1) + packed(q, 32, 4)
    return block, [D * SCALES_8[i // 32] * q[i] - M * MINIMUMS_8[i // 32] for i in range(256)]


def q6_k() -> tuple[bytes, list[float]]:
    q = numbers(6)
    scales = [s - 32 for s in SCALES_16]
    block = packed(q, 64, 4) + packed([v >> 4 for v in q], 32, 2) + struct.pack("<16be", *scales, D)
    return block, [D * scales[i // 16] * (q[i] - 32) for i in range(256)]


@pytest.mark.parametrize("build", [q2_k, q3_k, q4_k, q5_k, q6_k])
def test_block_built_by_hand_is_decoded(build: Callable[[], tuple[bytes, list[float]]]) -> None:
    block, weights = build()
    dtype = build.__name__.upper()
    assert dequantize(np.frombuffer(block, np.uint8), dtype, (256,)).tolist() == weights
