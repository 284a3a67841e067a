"""Bit fields, against a loop over single bits."""

from __future__ import annotations

import numpy as np
import pytest

from qwill.formats.bits import half, unpack


@pytest.mark.parametrize("run", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_unpacked_numbers_equal_those_of_a_loop(run: int, bits: int) -> None:
    packed = np.random.default_rng(0).integers(0, 256, (3, 130), dtype=np.uint8)[:, 1:129]
    want = [
        [(int(row[start + j]) >> shift) % 2**bits
         for start in range(0, 128, run) for shift in range(0, 8, bits) for j in range(run)]
        for row in packed
    ]  # fmt: skip
    assert unpack(packed, run, bits).tolist() == want


def test_half_is_read_at_any_byte() -> None:
    blocks = np.zeros((2, 5), np.uint8)
    blocks[:, 3:] = np.array([[1.5], [-2.0]], "<f2").view(np.uint8)
    assert half(blocks, 3).tolist() == [[1.5], [-2.0]]
