"""The formats in which weights are stored for the kernels: sizes and constants only.

A matrix is cut into panels of 16 rows, and a panel's inputs into groups of 32. Rows are filled up with zeros to whole
panels, columns to whole groups (bfloat16: to a whole pair). The kernels (csrc/kernels) read exactly this:

    float32     for each input: 16 floats, one a row
    bfloat16    for each pair of inputs: 16 × 2 numbers, a pair for each row
    4 bits      a group's 256 bytes of codes: byte 64 j + 4 r + i (j < 4, r < 16, i < 4) holds, for row r, the code of
                input 8 j + i in its low and of input 8 j + 4 + i in its high half
    8 bits      a group's 512 bytes of codes: byte 64 j + 4 r + i (j < 8) holds, for row r, the code of input 4 j + i

After a group's codes come its scales, 16 for each of `scales_per_group` (two: inputs 0–15 and 16–31), and then as many
minimums where the format has them. They are fp16; or, with super scales, int8 codes of scales, and each run of up to
eight groups is preceded by 16 fp16 super scales (and 16 fp16 super minimums): scale = super scale × scale code.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMATS", "GROUP", "PANEL_ROWS", "RUN_GROUPS", "WeightFormat", "groups_of", "runs_of"]

PANEL_ROWS = 16
"""Rows that are stored together."""

GROUP = 32
"""Inputs that share a scale, or two."""

RUN_GROUPS = 8
"""Groups that share super scales."""


def groups_of(columns: int) -> int:
    """Groups that `columns` inputs take, the last one perhaps in part."""
    return -(-columns // GROUP)


def runs_of(columns: int) -> int:
    """Runs of groups that `columns` inputs take, the last one perhaps in part."""
    return -(-groups_of(columns) // RUN_GROUPS)


@dataclass(frozen=True)
class WeightFormat:
    """One way to store weights: value = scale × (code − zero) + minimum. The two float formats have no scales."""

    name: str
    bits: int
    zero: int = 0
    scales_per_group: int = 0
    super_scales: bool = False
    has_minimum: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether weights are stored as floats, without codes."""
        return self.scales_per_group == 0

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes, for the 16 rows of a panel."""
        return PANEL_ROWS * GROUP * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a group's scales; its minimums take as many again."""
        return PANEL_ROWS * self.scales_per_group * (1 if self.super_scales else 2)

    @property
    def group_bytes(self) -> int:
        """Bytes of one group in one panel: codes, scales, minimums."""
        return self.code_bytes + self.scale_bytes * (1 + self.has_minimum)

    @property
    def head_bytes(self) -> int:
        """Bytes of the super scales and super minimums before a run of groups."""
        return 2 * PANEL_ROWS * (1 + self.has_minimum) if self.super_scales else 0

    def panel_bytes(self, columns: int) -> int:
        """Bytes of 16 rows with `columns` inputs."""
        if self.is_dense:
            inputs_per_word = 32 // self.bits
            return -(-columns // inputs_per_word) * 4 * PANEL_ROWS
        return groups_of(columns) * self.group_bytes + runs_of(columns) * self.head_bytes

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of `rows` × `columns`."""
        return -(-rows // PANEL_ROWS) * self.panel_bytes(columns)


FORMATS = {
    format.name: format
    for format in (
        WeightFormat("float32", bits=32),
        WeightFormat("bfloat16", bits=16),
        WeightFormat("uint4", bits=4, zero=8, scales_per_group=1),
        WeightFormat("uint4_min", bits=4, scales_per_group=1, has_minimum=True),
        WeightFormat("uint4_super", bits=4, scales_per_group=1, super_scales=True, has_minimum=True),
        WeightFormat("int8", bits=8, zero=128, scales_per_group=1),
        WeightFormat("int8_min", bits=8, scales_per_group=1, has_minimum=True),
        WeightFormat("int8_super", bits=8, scales_per_group=1, super_scales=True, has_minimum=True),
        WeightFormat("int8_super16", bits=8, zero=128, scales_per_group=2, super_scales=True),
        WeightFormat("int8_super16_min", bits=8, scales_per_group=2, super_scales=True, has_minimum=True),
    )
}
"""Every format by its name, which is also what files say."""
