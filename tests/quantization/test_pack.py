"""Packing, against slow loops that were written from the description of the layout, and back again."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qwill.errors import WeightsError
from qwill.quantization import FORMATS, Codes, PackedPart, WeightFormat, pack, pack_dense, unpack, unpack_dense

QUANTIZED = [name for name, format in FORMATS.items() if format.scales_per_group]
MakeCodes = Callable[..., Codes]


def slow_pack(codes: Codes, format: WeightFormat) -> bytes:
    """Byte after byte, for one panel after another."""
    rows, columns = codes.codes.shape
    groups = -(-columns // 32)
    out = bytearray()

    def code(row: int, column: int) -> int:
        return int(codes.codes[row, column]) if row < rows and column < columns else format.zero

    def number(array: torch.Tensor, row: int, column: int) -> bytes:
        kind = "<b" if array.dtype == torch.int8 else "<e"
        return struct.pack(kind, array[row, column].item() if row < rows else 0)

    for top in range(0, rows, 16):
        panel = range(top, top + 16)
        for group in range(groups):
            if format.super_scales and group % 8 == 0:
                for array in (codes.super_scales, codes.super_minima):
                    out += b"".join(number(array, row, group // 8) for row in panel) if array is not None else b""
            first = 32 * group
            for j in range(4 if format.bits == 4 else 8):
                for row in panel:
                    for i in range(4):
                        if format.bits == 4:
                            out.append(code(row, first + 8 * j + i) | code(row, first + 8 * j + 4 + i) << 4)
                        else:
                            out.append(code(row, first + 4 * j + i))
            for array in (codes.scales, codes.minima):
                if array is not None:
                    for half in range(format.scales_per_group):
                        column = group * format.scales_per_group + half
                        out += b"".join(number(array, row, column) for row in panel)
    return bytes(out)


def slow_pack_dense(weight: torch.Tensor) -> bytes:
    """Byte after byte: one fp32 of each row, or a pair of bf16."""
    rows, columns = weight.shape
    pair = 1 if weight.dtype == torch.float32 else 2
    size = weight.element_size()
    out = bytearray()
    for top in range(0, rows, 16):
        for first in range(0, columns, pair):
            for row in range(top, top + 16):
                for column in range(first, first + pair):
                    there = row < rows and column < columns
                    raw = weight[row, column].reshape(1).view(torch.uint8).tolist() if there else [0] * size
                    out += bytes(raw)
    return bytes(out)


def assert_same(ours: Codes, theirs: Codes) -> None:
    for field in dataclasses.fields(Codes):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        assert (a is None) == (b is None), field.name
        assert a is None or torch.equal(a, b), field.name


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (17, 40), (3, 300), (33, 544), (1, 1)])
def test_packed_bytes_equal_those_of_the_slow_loop(name: str, rows: int, columns: int, make_codes: MakeCodes) -> None:
    codes = make_codes(rows, columns, FORMATS[name])
    assert pack(codes, FORMATS[name]).data.numpy().tobytes() == slow_pack(codes, FORMATS[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (17, 7), (1, 1), (40, 33)])
def test_packed_floats_equal_those_of_the_slow_loop(dtype: torch.dtype, rows: int, columns: int) -> None:
    weight = torch.randn(rows, columns).to(dtype)
    part = pack_dense(weight)
    assert part.data.numpy().tobytes() == slow_pack_dense(weight)
    assert torch.equal(unpack_dense(part, columns), weight)


@pytest.mark.parametrize("name", QUANTIZED)
@given(rows=st.integers(1, 70), columns=st.integers(1, 700), seed=st.integers(0, 9))
def test_unpacking_gives_back_what_was_packed(
    name: str, make_codes: MakeCodes, rows: int, columns: int, seed: int
) -> None:
    codes = make_codes(rows, columns, FORMATS[name], seed)
    part = pack(codes, FORMATS[name])
    assert (part.rows, part.data.dtype, part.data.is_contiguous()) == (rows, torch.uint8, True)
    assert_same(unpack(part, columns), codes)


@pytest.mark.parametrize("name", ["uint4_super", "int8_super16", "int8"])
def test_more_panels_than_one_piece_holds_are_packed(name: str, make_codes: MakeCodes) -> None:
    codes = make_codes(1605, 1056, FORMATS[name])
    part = pack(codes, FORMATS[name])
    assert_same(unpack(part, 1056), codes)
    last = PackedPart(FORMATS[name], 5, part.data[-FORMATS[name].panel_bytes(1056) :])
    assert_same(unpack(last, 1056), codes.rows(slice(1600, 1605)))


def test_rows_that_are_not_contiguous_are_packed(make_codes: MakeCodes) -> None:
    format = FORMATS["uint4_super"]
    codes = make_codes(64, 96, format)
    every_other = Codes(*(getattr(codes, field.name)[::2] for field in dataclasses.fields(Codes)))
    assert_same(unpack(pack(every_other, format), 96), every_other)
    wide = torch.randn(32, 20)
    assert torch.equal(unpack_dense(pack_dense(wide.t()), 32), wide.t())


@pytest.mark.parametrize("rows", [0, 5])
def test_a_matrix_without_rows_or_columns_takes_no_bytes(rows: int) -> None:
    columns = 0 if rows else 64
    for name in QUANTIZED:
        part = pack(Codes.empty(rows, columns, FORMATS[name]), FORMATS[name])
        assert part.data.numel() == 0
        assert unpack(part, columns).codes.shape == (rows, columns)
    assert unpack_dense(pack_dense(torch.zeros(rows, columns)), columns).shape == (rows, columns)


def test_packed_data_lie_on_a_cache_line(make_codes: MakeCodes) -> None:
    assert pack(make_codes(64, 64, FORMATS["int8"]), FORMATS["int8"]).data.data_ptr() % 64 == 0
    assert pack_dense(torch.zeros(16, 16)).data.data_ptr() % 64 == 0


def test_parts_that_do_not_fit_the_format_are_refused(make_codes: MakeCodes) -> None:
    format = FORMATS["uint4_super"]
    codes = make_codes(4, 64, format)
    spoiled = {
        "codes is int32": {"codes": codes.codes.int()},
        "scales is float16": {"scales": codes.scales.half()},
        r"minima is int8 \(4, 1\)": {"minima": codes.minima[:, :1]},
        "super_minima is missing": {"super_minima": None},
        "super_scales is float32": {"super_scales": codes.super_scales.float()},
        "a code is 31, but format uint4_super has 4 bits": {"codes": codes.codes | 16 | 15},
        "cannot have format": {"codes": codes.codes[0]},
    }
    for message, change in spoiled.items():
        with pytest.raises(WeightsError, match=message):
            pack(dataclasses.replace(codes, **change), format)
    with pytest.raises(WeightsError, match="cannot have format float32"):
        pack(codes, FORMATS["float32"])
    with pytest.raises(WeightsError, match="scales is int8"):
        pack(codes, FORMATS["int8_super16"])


def test_only_matrices_of_floats_are_packed_as_floats() -> None:
    for weight in (torch.zeros(4), torch.zeros(2, 2, dtype=torch.float16), torch.zeros(2, 2, 2)):
        with pytest.raises(WeightsError, match="is not an fp32 or bf16 matrix"):
            pack_dense(weight)


def test_data_of_another_size_are_refused(make_codes: MakeCodes) -> None:
    part = pack(make_codes(20, 64, FORMATS["int8"]), FORMATS["int8"])
    for columns in (32, 65, 10**15):
        with pytest.raises(WeightsError, match=r"20 × .* take"):
            unpack(part, columns)
    for data in (part.data[:-1], part.data.view(torch.int8), part.data.reshape(2, -1)):
        with pytest.raises(WeightsError, match="but the data are"):
            unpack(PackedPart(part.format, 20, data), 64)
    with pytest.raises(WeightsError, match="int8 has codes"):
        unpack_dense(part, 64)
    with pytest.raises(WeightsError, match="float32 has no codes"):
        unpack(pack_dense(torch.zeros(2, 2)), 2)


@pytest.mark.parametrize("name", ["uint4_super", "int8"])
def test_packing_is_fast_enough_to_load_a_model(name: str) -> None:
    # On one idle core: 300 million weights a second and more. The floor leaves room for a busy machine.
    codes = Codes.empty(4096, 1024, FORMATS[name])
    for part in (codes.codes, codes.scales, codes.minima, codes.super_scales, codes.super_minima):
        if part is not None:
            part.zero_()
    start = time.process_time()
    pack(codes, FORMATS[name])
    assert np.prod(codes.codes.shape) / (time.process_time() - start) > 30e6
