"""Linear layers over packed weights: the right numbers, for any shape, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill import _native
from qwill.errors import TensorError
from qwill.ops import quantized, reference
from qwill.ops.native import NativeOps
from qwill.quantization import FORMATS, GROUP, Codes, PackedWeight, pack, unpack

Packed = Callable[..., PackedWeight]

SHAPES = [(16, 32), (17, 33), (40, 300), (5, 7), (33, 897), (1, 1), (64, 256)]
TOKENS = (1, 2, 3, 4, 5, 7, 8, 9, 20)


@pytest.mark.parametrize("format", FORMATS)
def test_it_equals_the_exact_emulation_for_odd_sizes_and_tails(native: NativeOps, packed: Packed, format: str) -> None:
    for N, K in SHAPES:
        weight = packed(K, (format, N))
        for T in TOKENS:
            x, bias, residual = torch.randn(T, K), torch.randn(N), torch.randn(T, N)
            want = reference.linear(x, weight, bias, residual)
            got = native.linear(x, weight, bias, residual)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=float(want.abs().max()) * 3e-6)


@pytest.mark.parametrize("format", [name for name, format in FORMATS.items() if not format.is_dense])
def test_the_integer_part_is_exact(native: NativeOps, format: str) -> None:
    """With scales of 1, one group and no minimum to speak of, the result is the integer sum itself."""
    N, K, T = 37, GROUP, 9
    f = FORMATS[format]
    codes = Codes.empty(N, K, f)
    codes.codes.random_(0, 2**f.bits)
    codes.scales.fill_(1)
    for part, value in ((codes.minima, 0), (codes.super_scales, 1), (codes.super_minima, 0)):
        if part is not None:
            part.fill_(value)
    x = torch.randint(-127, 128, (T, K)).float()
    x[:, 0], x[:, 16] = 127.0, -127.0  # the greatest magnitude is 127, so that activations keep their values
    want = x.double() @ (codes.codes.double() - f.zero).T
    assert torch.equal(native.linear(x, PackedWeight(K, (pack(codes, f),))).double(), want)


@pytest.mark.parametrize("extreme", [0, 255])
def test_sums_of_the_largest_products_do_not_overflow(native: NativeOps, extreme: int) -> None:
    for format in ("uint4", "uint4_min", "int8", "int8_min", "int8_super16"):
        f = FORMATS[format]
        codes = Codes.empty(16, 64, f)
        codes.codes.fill_(min(extreme, 2**f.bits - 1))
        codes.scales.fill_(1)
        for part in (codes.minima, codes.super_scales, codes.super_minima):
            if part is not None:
                part.fill_(1)
        weight = PackedWeight(64, (pack(codes, f),))
        for sign in (127.0, -127.0):
            x = torch.full((8, 64), sign)
            torch.testing.assert_close(native.linear(x, weight), reference.linear(x, weight))


@pytest.mark.parametrize("format", FORMATS)
def test_a_token_gets_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads(
    native: NativeOps, packed: Packed, format: str
) -> None:
    weight = packed(200, (format, 50))
    x = torch.randn(33, 200)
    alone = torch.cat([native.linear(row[None], weight) for row in x])
    for threads in (1, 2, 3, 4):
        other = NativeOps(native.kernels, threads)
        assert torch.equal(other.linear(x, weight), alone)
    for start, count in ((0, 2), (3, 7), (10, 8), (1, 32)):
        assert torch.equal(native.linear(x[start : start + count], weight), alone[start : start + count])


def test_parts_of_different_formats_stand_side_by_side(native: NativeOps, packed: Packed) -> None:
    weight = packed(96, ("uint4_super", 24), ("int8", 5), ("bfloat16", 17), ("int8_super16", 16))
    x, bias = torch.randn(3, 96), torch.randn(62)
    want = reference.linear(x, weight, bias)
    torch.testing.assert_close(native.linear(x, weight, bias), want, rtol=1e-5, atol=float(want.abs().max()) * 3e-6)


def test_results_are_written_fully_and_nothing_else_is(native: NativeOps, packed: Packed) -> None:
    weight = packed(64, ("int8", 21))
    x, y = torch.randn(5, 64), torch.full((7, 21), torch.nan)
    _native.linear(
        native.pool, None, native.kernels, native._packed(weight), x.data_ptr(), 64, 5, y[1:].data_ptr(), 0, 0, 21
    )
    assert y[1:6].isfinite().all()
    assert y[0].isnan().all()
    assert y[6].isnan().all()


@pytest.mark.parametrize("format", ["uint4_super", "int8", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_spoils_its_own_row_only(
    native: NativeOps, packed: Packed, format: str, bad: float
) -> None:
    weight = packed(100, (format, 20))
    x = torch.randn(4, 100)
    x[2, 99] = bad
    y = native.linear(x, weight)
    assert not y[2].isfinite().any()
    assert y[[0, 1, 3]].isfinite().all()


def test_zeros_stay_zeros(native: NativeOps, packed: Packed) -> None:
    for format in FORMATS:
        assert not native.linear(torch.zeros(2, 70), packed(70, (format, 18))).any()


def test_rows_of_a_table_are_its_dequantized_rows(native: NativeOps, packed: Packed) -> None:
    for format in FORMATS:
        table = packed(75, (format, 35), ("int8", 20))
        ids = torch.tensor([0, 34, 54, 16, 15, 35, 0])
        torch.testing.assert_close(native.embedding(ids, table), table.dequantize()[ids], rtol=1e-6, atol=0)


def test_activations_are_rounded_as_the_emulation_rounds_them(native: NativeOps) -> None:
    """A weight that picks one input: the results are the rounded activations themselves."""
    f = FORMATS["int8"]
    codes = Codes.empty(32, 32, f)
    codes.codes.fill_(f.zero)
    codes.codes.fill_diagonal_(f.zero + 1)
    codes.scales.fill_(1)
    x = torch.randn(200, 32) * torch.logspace(-20, 20, 200)[:, None]
    rounded, scales = quantized.quantize_activations(x)
    got = native.linear(x, PackedWeight(32, (pack(codes, f),)))
    torch.testing.assert_close(got, (rounded[:, 0] * scales).float(), rtol=2e-7, atol=0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_shapes_and_formats(packed: Packed, data: st.DataObject) -> None:
    native = NativeOps(_native.kernels(data.draw(st.sampled_from(_native.instruction_sets()))), 2)
    K = data.draw(st.integers(1, 400))
    parts = data.draw(st.lists(st.tuples(st.sampled_from(sorted(FORMATS)), st.integers(1, 70)), min_size=1, max_size=3))
    weight = packed(K, *parts)
    x = torch.randn(data.draw(st.integers(1, 40)), K)
    want = reference.linear(x, weight)
    torch.testing.assert_close(native.linear(x, weight), want, rtol=1e-5, atol=float(want.abs().max()) * 1e-5)


def test_hostile_shapes_raise_before_a_kernel_runs(native: NativeOps, packed: Packed) -> None:
    weight = packed(64, ("int8", 20))
    good = torch.randn(3, 64)
    for x in (good[0], good[:, :63], good.double(), good.bfloat16(), torch.randn(64, 3).T, good[None]):
        with pytest.raises(TensorError, match=r"x is .* the op takes"):
            native.linear(x, weight)
    with pytest.raises(TensorError, match="bias"):
        native.linear(good, weight, torch.zeros(21))
    with pytest.raises(TensorError, match="residual"):
        native.linear(good, weight, None, torch.zeros(2, 20))
    for ids in (torch.tensor([20]), torch.tensor([-1]), torch.tensor([2**40])):
        with pytest.raises(TensorError, match="rows of a table of 20"):
            native.embedding(ids, weight)
    assert native.linear(good[:0], weight).shape == (0, 20)


def test_unpacking_gives_back_the_codes_that_the_kernels_read(packed: Packed) -> None:
    weight = packed(50, ("uint4_super", 20))
    codes = unpack(weight.parts[0], 50)
    assert torch.equal(pack(codes, FORMATS["uint4_super"]).data, weight.parts[0].data)
