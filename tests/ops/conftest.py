"""Native ops for each instruction set that runs here, and packed weights of every format."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwill.quantization import FORMATS, Codes, PackedPart, PackedWeight, pack, pack_dense

_native = importlib.import_module("qwill._native") if importlib.util.find_spec("qwill._native") else None

Packed = Callable[..., PackedWeight]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=_native.instruction_sets() if _native else ["none"])
def native(request: pytest.FixtureRequest) -> Any:
    if _native is None:
        pytest.skip("the native kernels were not built: nothing of them is tested")
    from qwill.ops.native import NativeOps

    return NativeOps(_native.kernels(request.param), threads=2)


def random_part(name: str, rows: int, columns: int) -> PackedPart:
    """Rows of a format with random codes, all of them possible ones, and scales of ordinary size."""
    format = FORMATS[name]
    if format.is_dense:
        return pack_dense(torch.randn(rows, columns).to(torch.float32 if format.bits == 32 else torch.bfloat16))
    codes = Codes.empty(rows, columns, format)
    codes.codes.random_(0, 2**format.bits)
    for scales in (codes.scales, codes.minima):
        if scales is not None:
            scales.random_(-127, 128) if format.super_scales else scales.copy_(torch.randn(scales.shape) / 50)
    for supers in (codes.super_scales, codes.super_minima):
        if supers is not None:
            supers.copy_(torch.rand(supers.shape) / 100)
    return pack(codes, format)


@pytest.fixture
def packed() -> Packed:
    """packed(columns, ("int8", 40), ("uint4", 5)): a weight of 45 rows in two parts."""

    def make(columns: int, *parts: tuple[str, int]) -> PackedWeight:
        return PackedWeight(columns, tuple(random_part(name, rows, columns) for name, rows in parts))

    return make
