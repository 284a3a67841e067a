"""The table of op timings."""

from __future__ import annotations

import io

from qwill.bench.kernel_report import print_kernels
from qwill.bench.kernels import KernelMeasurement, Timing
from qwill.bench.results import Spread


def test_the_table_shows_each_timing_under_its_number_of_tokens() -> None:
    timings = [
        Timing("linear o_proj", "int4", 1, Spread(25e-6, 20e-6, 50e-6), 40e9, 160e9, 0.5),
        Timing("rms_norm", "", 1, Spread(0.5e-6, 0.25e-6, 2e-6), 16e9, None, None),
        Timing("linear o_proj", "int4", 512, Spread(1.5e-3, 1e-3, 2e-3), 4e9, 1432e9, None),
    ]
    out = io.StringIO()
    print_kernels(KernelMeasurement("avx2", 2, "now", {"cpu": "any"}, 80e9, {}, timings), out)
    text = out.getvalue()
    assert "avx2, 2 threads" in text
    assert "80.0 GB/s" in text
    assert text.index("1 token;") < text.index("rms_norm") < text.index("512 tokens;") < text.rindex("o_proj")
    assert [
        word for word in ("25.0 (20.0–50.0)", "40.0", "50%", "160", "0.50 (0.25–2.00)", "1432") if word not in text
    ] == []
