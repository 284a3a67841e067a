"""The native ops between the matrices: every instruction set, odd sizes, views, NaN, and equal bits however cut.

The oracle is torch in float64, or in float32 where the operations are so few that the bits must be equal.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qwill.ops import reference

native = pytest.importorskip("qwill._native", reason="the native ops are not built here")

SIZES = [2, 16, 30, 34, 62, 64, 126, 128, 130, 256]
TAILS = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 1024, 1031]


class Ops:
    """The native ops of one instruction set, on tensors; outputs begin as NaN."""

    def __init__(self, isa: str, threads: int = 1) -> None:
        self.pool, self.kernels, self.program = native.Pool(threads), native.kernels(isa), None

    def recorded(self) -> Any:
        """From now on ops are also kept in a program, which is returned."""
        self.program = native.Program()
        return self.program

    def _heads(self, x: Tensor) -> tuple[int, ...]:
        assert x.stride(2) == 1
        return (x.data_ptr(), *x.shape, x.stride(0), x.stride(1))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = unwritten(*x.shape)
        norm = (weight.data_ptr(), eps)
        native.rms_norm(self.pool, self.program, self.kernels, *self._heads(x), *norm, y.data_ptr())
        return y

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = unwritten(*x.shape)
        rotary = (cos.data_ptr(), sin.data_ptr())
        native.rope(self.pool, self.program, self.kernels, *self._heads(x), *rotary, y.data_ptr())
        return y

    def norm_rope(self, x: Tensor, weight: Tensor, eps: float, rotary: tuple[Tensor, Tensor]) -> Tensor:
        y = unwritten(*x.shape)
        rest = (weight.data_ptr(), eps, rotary[0].data_ptr(), rotary[1].data_ptr(), y.data_ptr())
        native.norm_rope(self.pool, self.program, self.kernels, *self._heads(x), *rest)
        return y

    def rotary_angles(self, positions: Tensor, inv_freq: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
        size = 2 * len(inv_freq)
        cos, sin = unwritten(len(positions), size), unwritten(len(positions), size)
        given = (positions.data_ptr(), len(positions), inv_freq.data_ptr(), size, amplitude)
        native.rotary_angles(self.pool, self.program, *given, cos.data_ptr(), sin.data_ptr())
        return cos, sin

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        tokens, features = gate_up.shape[0], gate_up.shape[1] // 2
        y = unwritten(tokens, features)
        given = (gate_up.data_ptr(), tokens, features, y.data_ptr())
        native.silu_and_mul(self.pool, self.program, self.kernels, *given)
        return y

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        y = unwritten(*a.shape)
        given = (a.data_ptr(), b.data_ptr(), a.numel(), y.data_ptr())
        native.add(self.pool, self.program, self.kernels, *given)
        return y

    def argmax(self, x: Tensor) -> Tensor:
        places = torch.full((len(x),), -7)
        native.argmax(self.pool, self.program, self.kernels, x.data_ptr(), *x.shape, places.data_ptr())
        return places

    def rows(self, x: Tensor, places: Tensor) -> Tensor:
        y = unwritten(len(places), x.shape[1])
        given = (x.data_ptr(), places.data_ptr(), len(places), x.shape[1], y.data_ptr())
        native.rows(self.pool, self.program, *given)
        return y


def unwritten(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def view_of_heads(tokens: int, heads: int, size: int) -> Tensor:
    """Heads in the middle of wider rows, as q and k lie in the result of one fused matrix."""
    return random(tokens, heads + 3, size)[:, 2 : heads + 2]


def rotary_of(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    half = random(tokens, size // 2, seed=5, scale=100.0)
    angles = torch.cat((half, half), -1)
    return angles.cos(), angles.sin()


@pytest.fixture(params=native.instruction_sets())
def ops(request: pytest.FixtureRequest) -> Ops:
    return Ops(request.param)


@pytest.fixture(params=native.instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("size", TAILS)
def test_rms_norm_is_that_of_float64(ops: Ops, size: int) -> None:
    x, weight = view_of_heads(3, 2, size), random(size, seed=1)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6).double(), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1e4, 1e15])
def test_rms_norm_holds_for_tiny_and_huge_values(ops: Ops, scale: float) -> None:
    x, weight = random(2, 1, 100, scale=scale), random(100, seed=1)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6).double(), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("size", SIZES)
def test_rope_has_the_bits_of_the_reference(ops: Ops, size: int) -> None:
    x, (cos, sin) = view_of_heads(5, 3, size), rotary_of(5, size)
    assert torch.equal(ops.rope(x, cos, sin), reference.rope(x, cos, sin))


@pytest.mark.parametrize("size", SIZES)
def test_norm_rope_is_the_norm_and_then_the_rotation_to_the_bit(ops: Ops, size: int) -> None:
    x, weight, rotary = view_of_heads(5, 3, size), random(size, seed=1), rotary_of(5, size)
    two_steps = ops.rope(ops.rms_norm(x, weight, 1e-6), *rotary)
    assert torch.equal(ops.norm_rope(x, weight, 1e-6, rotary), two_steps)


@pytest.mark.parametrize("size", TAILS)
@pytest.mark.parametrize("tokens", [1, 3])
def test_silu_and_mul_is_that_of_float64(ops: Ops, tokens: int, size: int) -> None:
    gate_up = random(tokens, 2 * size, scale=8.0)
    expected = reference.silu_and_mul(gate_up.double())
    torch.testing.assert_close(ops.silu_and_mul(gate_up).double(), expected, rtol=1e-6, atol=1e-30)


def test_silu_goes_to_zero_below_and_to_its_input_above(ops: Ops) -> None:
    gate = torch.tensor([-3e38, -1e4, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e4, 3e38])
    got = ops.silu_and_mul(torch.cat((gate, torch.ones(10)))[None])[0]
    torch.testing.assert_close(got, torch.nn.functional.silu(gate), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("size", [1, 17, 8192, 20001])
def test_add_has_the_bits_of_torch(ops: Ops, size: int) -> None:
    a, b = random(2, size), random(2, size, seed=1)
    assert torch.equal(ops.add(a, b), a + b)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 1023, 1025, 16384, 16385, 40000])
def test_argmax_is_that_of_torch(ops: Ops, columns: int) -> None:
    x = random(4, columns)
    assert torch.equal(ops.argmax(x), x.argmax(-1))


def test_argmax_takes_the_first_of_equals_wherever_they_are(ops: Ops) -> None:
    for first in (0, 5, 1023, 1024, 16383, 16384, 39999):
        x = torch.full((1, 40000), -torch.inf)
        x[0, first] = x[0, min(first + 20000, 39999)] = -3.0
        assert ops.argmax(x).tolist() == [first]
    assert ops.argmax(torch.full((2, 33), -torch.inf)).tolist() == [0, 0]
    assert ops.argmax(torch.tensor([[-torch.inf, torch.inf, 1.0, torch.inf]])).tolist() == [1]


@pytest.mark.parametrize("place", [0, 16, 1030, 16384, 20000])
def test_argmax_of_a_row_with_nan_is_no_place_and_its_neighbours_do_not_notice(ops: Ops, place: int) -> None:
    x = random(3, 20001)
    x[1, place] = torch.nan
    assert ops.argmax(x).tolist() == [int(x[0].argmax()), -1, int(x[2].argmax())]


def test_rows_are_taken_in_the_order_asked_for(ops: Ops) -> None:
    x, places = random(9, 33), torch.tensor([8, 0, 0, 3])
    assert torch.equal(ops.rows(x, places), x[places])


@pytest.mark.parametrize("size", [2, 32, 64, 128])
def test_rotary_angles_are_those_of_torch_up_to_the_longest_context(ops: Ops, size: int) -> None:
    inv_freq = 1e6 ** -(torch.arange(0, size, 2) / size)
    positions = torch.tensor([0, 1, 17, 4095, 40960, 99999, 131071, 131072])
    half = positions[:, None].float() * inv_freq
    angles = torch.cat((half, half), -1)
    cos, sin = ops.rotary_angles(positions, inv_freq, 1.25)
    for got, expected in ((cos, angles.double().cos()), (sin, angles.double().sin())):
        torch.testing.assert_close(got.double(), expected * 1.25, rtol=2.5e-7, atol=1e-12)
        assert torch.equal(got[:, : size // 2], got[:, size // 2 :])


@pytest.mark.parametrize("tokens", [1, 2, 7, 64, 65, 200])
def test_a_token_has_the_same_bits_alone_and_in_any_company(isa: str, tokens: int) -> None:
    x, weight, rotary, gate_up = random(tokens, 3, 128), random(128, seed=1), rotary_of(tokens, 128), random(tokens, 96)
    alone, together = Ops(isa), Ops(isa, threads=3)
    normed, turned = together.norm_rope(x, weight, 1e-6, rotary), together.rope(x, *rotary)
    gated = together.silu_and_mul(gate_up)
    for t in {0, tokens // 2, tokens - 1}:
        one = slice(t, t + 1)
        angles = (rotary[0][one], rotary[1][one])
        assert torch.equal(normed[one], alone.norm_rope(x[one], weight, 1e-6, angles))
        assert torch.equal(turned[one], alone.rope(x[one], *angles))
        assert torch.equal(gated[one], alone.silu_and_mul(gate_up[one]))


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_the_number_of_threads_changes_no_bit(isa: str, threads: int) -> None:
    def everything(ops: Ops) -> list[Tensor]:
        x, weight, rotary = view_of_heads(70, 5, 128), random(128, seed=1), rotary_of(70, 128)
        gate_up, logits = random(70, 1026), random(3, 50001)
        return [
            ops.rms_norm(x, weight, 1e-6),
            ops.rope(x, *rotary),
            ops.norm_rope(x, weight, 1e-6, rotary),
            ops.silu_and_mul(gate_up),
            ops.add(gate_up, gate_up),
            ops.argmax(logits),
            ops.rows(gate_up, torch.arange(69, -1, -1)),
            *ops.rotary_angles(torch.arange(70), random(64, seed=3), 1.0),
        ]

    for one, several in zip(everything(Ops(isa)), everything(Ops(isa, threads)), strict=True):
        assert torch.equal(one, several)


@pytest.mark.parametrize("place", [0, 17, 63])
def test_nan_in_is_nan_out(ops: Ops, place: int) -> None:
    x, weight, rotary = random(2, 2, 64), torch.ones(64), rotary_of(2, 64)
    x[1, 0, place] = torch.nan
    assert ops.rms_norm(x, weight, 1e-6).isnan().all(-1).tolist() == [[False, False], [True, False]]
    assert ops.norm_rope(x, weight, 1e-6, rotary).isnan().all(-1).tolist() == [[False, False], [True, False]]
    turned = ops.rope(x, *rotary).isnan()
    assert turned.sum() == 2
    assert turned[1, 0, [place, (place + 32) % 64]].all()
    flat = x.flatten(1)
    assert torch.equal(ops.add(flat, flat).isnan(), flat.isnan())
    assert torch.equal(ops.silu_and_mul(torch.cat((flat, torch.ones_like(flat)), 1)).isnan(), flat.isnan())
    assert torch.equal(ops.silu_and_mul(torch.cat((torch.ones_like(flat), flat), 1)).isnan(), flat.isnan())


def test_no_tokens_are_no_work(ops: Ops) -> None:
    empty, rotary = torch.empty(0, 2, 64), (torch.empty(0, 64), torch.empty(0, 64))
    assert ops.norm_rope(empty, torch.ones(64), 1e-6, rotary).shape == (0, 2, 64)
    assert ops.silu_and_mul(torch.empty(0, 64)).shape == (0, 32)
    assert ops.argmax(torch.empty(0, 64)).shape == (0,)


def test_a_program_computes_anew_what_lies_in_its_memory_by_then(isa: str) -> None:
    ops = Ops(isa, threads=2)
    program = ops.recorded()
    positions, inv_freq, x = torch.tensor([3, 4]), random(32, seed=2), random(2, 4, 64)
    cos, sin = ops.rotary_angles(positions, inv_freq, 1.0)
    turned = ops.rope(x, cos, sin)
    best = ops.argmax(turned.flatten(1))
    assert len(program) == 3
    positions.copy_(torch.tensor([70, 9000]))
    x.copy_(random(2, 4, 64, seed=8))
    program.run(ops.pool)
    plain = Ops(isa)
    cos, sin = plain.rotary_angles(positions, inv_freq, 1.0)
    assert torch.equal(turned, plain.rope(x, cos, sin))
    assert torch.equal(best, plain.argmax(turned.flatten(1)))
