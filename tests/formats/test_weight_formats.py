"""Sizes of the formats, against numbers worked out by hand from the layout."""

from __future__ import annotations

import pytest

from qwill.formats.weight_formats import FORMATS

BITS_PER_WEIGHT = {
    "float32": 32,
    "bfloat16": 16,
    "uint4": 4 + 16 / 32,
    "uint4_min": 4 + 32 / 32,
    "uint4_super": 4 + 16 / 32 + 32 / 256,
    "int8": 8 + 16 / 32,
    "int8_min": 8 + 32 / 32,
    "int8_super": 8 + 16 / 32 + 32 / 256,
    "int8_super16": 8 + 16 / 32 + 16 / 256,
    "int8_super16_min": 8 + 32 / 32 + 32 / 256,
}


def test_names_are_keys() -> None:
    assert {name: format.name for name, format in FORMATS.items()} == {name: name for name in BITS_PER_WEIGHT}


@pytest.mark.parametrize("name", BITS_PER_WEIGHT)
def test_bits_per_weight_of_whole_runs(name: str) -> None:
    assert FORMATS[name].nbytes(32, 512) * 8 == 32 * 512 * BITS_PER_WEIGHT[name]


def test_odd_sizes_are_filled_up() -> None:
    assert FORMATS["float32"].panel_bytes(7) == 7 * 64
    assert FORMATS["bfloat16"].panel_bytes(7) == 4 * 64
    assert FORMATS["int8"].panel_bytes(33) == 2 * (512 + 32)
    assert FORMATS["uint4_super"].panel_bytes(9 * 32) == 9 * (256 + 16 + 16) + 2 * (32 + 32)
    assert FORMATS["int8_super16"].panel_bytes(1) == 512 + 32 + 32
    assert FORMATS["int8"].nbytes(17, 32) == 2 * (512 + 32)
    assert FORMATS["int8"].nbytes(0, 32) == 0
