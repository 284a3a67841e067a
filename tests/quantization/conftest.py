"""Random codes of every format, for the tests of packing; built without qwill's own shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qwill.quantization import Codes, WeightFormat


def random_codes(rows: int, columns: int, format: WeightFormat, seed: int = 0) -> Codes:
    """Every code, scale and minimum at random; fp16 values are finite."""
    random = torch.Generator().manual_seed(seed)
    groups = -(-columns // 32)
    runs = -(-groups // 8)

    def half(count: int) -> torch.Tensor:
        return torch.randn((rows, count), generator=random).half()

    def scales() -> torch.Tensor:
        count = groups * format.scales_per_group
        if not format.super_scales:
            return half(count)
        return torch.randint(-128, 128, (rows, count), generator=random, dtype=torch.int8)

    codes = torch.randint(0, 2**format.bits, (rows, columns), generator=random, dtype=torch.uint8)
    return Codes(
        codes,
        scales(),
        scales() if format.has_minimum else None,
        half(runs) if format.super_scales else None,
        half(runs) if format.super_scales and format.has_minimum else None,
    )


@pytest.fixture(scope="session")
def make_codes() -> Callable[..., Codes]:
    """`random_codes`."""
    return random_codes
