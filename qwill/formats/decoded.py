"""Blocks of quantized weights that are unpacked, but not yet multiplied: whole numbers and their scales.

What `dequantize` makes floats of, and what packing for the kernels keeps as it is. Knows no block's layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qwill.formats.bits import Floats, Halves

__all__ = ["Decoded", "SmallNumbers"]

SmallNumbers = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Decoded:
    """n blocks of weights in equal groups: weight = scale × q + minimum.

    Attributes:
        q: (n, weights of a block) int8.
        scales: (n, groups) fp16; int8 where they are to be multiplied by the block's super scale.
        minimums: as `scales`, or None; they are added.
        super_scale: (n, 1) fp16, or None.
        super_minimum: (n, 1) fp16, or None.
    """

    q: SmallNumbers
    scales: Halves | SmallNumbers
    minimums: Halves | SmallNumbers | None = None
    super_scale: Halves | None = None
    super_minimum: Halves | None = None

    def write(self, out: Floats) -> None:
        """The weights, into (n, weights of a block) float32. Each product and the sum are rounded once."""
        np.copyto(out, self.q)
        groups = out.reshape(*self.scales.shape, -1)
        groups *= _wide(self.scales, self.super_scale)
        if self.minimums is not None:
            groups += _wide(self.minimums, self.super_minimum)


def _wide(scales: Halves | SmallNumbers, of_block: Halves | None) -> Floats:
    """(n, groups, 1) float32."""
    wide = scales.astype(np.float32)
    if of_block is not None:
        wide *= of_block.astype(np.float32)
    return wide[..., None]
