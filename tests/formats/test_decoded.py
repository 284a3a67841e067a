"""Decoded blocks become weights by the formula, each rounding in its place."""

from __future__ import annotations

import numpy as np

from qwill.formats.decoded import Decoded


def test_scales_of_groups_are_multiplied_by_the_blocks_scale_first() -> None:
    q = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    scales, minimums = np.array([[3, -5], [63, 0]], np.int8), np.array([[1, 2], [3, 63]], np.int8)
    super_scale, super_minimum = np.array([[0.1], [-0.3]], np.float16), np.array([[7e-4], [0.2]], np.float16)
    out = np.empty((2, 8), np.float32)
    Decoded(q, scales, minimums, super_scale, super_minimum).write(out)
    f = np.float32
    for block, weight in np.ndindex(2, 8):
        scale = f(super_scale[block, 0]) * f(scales[block, weight // 4])
        minimum = f(super_minimum[block, 0]) * f(minimums[block, weight // 4])
        assert out[block, weight] == scale * f(q[block, weight]) + minimum


def test_plain_scales_need_nothing_else() -> None:
    out = np.empty((1, 4), np.float32)
    Decoded(np.array([[1, -2, 3, -4]], np.int8), np.array([[0.5]], np.float16)).write(out)
    assert out.tolist() == [[0.5, -1, 1.5, -2]]
