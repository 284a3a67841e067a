"""Bit fields of GGUF's blocks, unpacked for many blocks at once. Knows no block's layout."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Floats", "Halves", "half", "unpack"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


def half(blocks: Bytes, at: int) -> Halves:
    """(n, 1) float16: the fp16 at byte `at` of each block."""
    return blocks[:, at : at + 2].copy().view(np.float16)


def unpack(packed: Bytes, run: int, bits: int) -> Bytes:
    """(n, k) bytes -> (n, k × 8 / bits) numbers of 1, 2 or 4 bits.

    Each run of `run` bytes becomes 8 / bits runs of `run` numbers: first the lowest bits of every byte of the run,
    then the bits above them, and so on.
    """
    flat = np.ascontiguousarray(packed)
    # A run is moved as one item of `run` bytes, which is much faster than byte by byte.
    item = np.dtype((np.void, run))
    runs = np.empty((flat.size // run, 8 // bits), dtype=item)
    for i in range(8 // bits):
        numbers = flat >> np.uint8(i * bits)
        numbers &= np.uint8(2**bits - 1)
        runs[:, i] = numbers.view(item).ravel()
    return runs.view(np.uint8).reshape(len(packed), -1)
