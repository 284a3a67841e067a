"""Timing the native ops: each one, and what is derived from the time."""

from __future__ import annotations

import json

import pytest

from qwill.bench import kernel_cases, machine
from qwill.bench.kernels import KernelSettings, as_record, measure
from qwill.errors import BenchmarkError, SettingError
from qwill.ops import backend, native_ops


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little work, however large the real shapes are."""
    if native_ops() is None:
        pytest.skip("the native ops are not built here")
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 22)
    monkeypatch.setattr(machine, "BANDWIDTH_SECONDS", 0.01)
    monkeypatch.setattr(kernel_cases, "UNCACHED_BYTES", 1 << 20)
    monkeypatch.setattr(kernel_cases, "V", 640)
    monkeypatch.setattr(kernel_cases, "MATRICES", {"lm_head": (1024, 640), "o_proj": (2048, 1024)})


def test_every_op_is_timed_for_one_token_and_for_a_prompt(small: None) -> None:
    ops = native_ops()
    assert ops is not None
    threads = ops.threads
    try:
        measured = measure(KernelSettings(prompt_tokens=8, context=33, op_seconds=0.001), threads=2)
    finally:
        ops.set_threads(threads)
    assert (measured.isa, measured.threads) == (ops.isa, 2)
    assert len(measured.timings) == 2 * 3 + 3 + 2 * 6
    for timing in measured.timings:
        assert 0 < timing.seconds.low <= timing.seconds.median <= timing.seconds.high < 10
        assert (timing.share_of_read_bandwidth is not None) == (
            timing.tokens == 1 and timing.op.startswith(("linear", "attention"))
        )
        if timing.share_of_read_bandwidth is not None:
            expected = timing.bytes_per_second / measured.read_bandwidth
            assert timing.share_of_read_bandwidth == pytest.approx(expected)
    record = json.loads(json.dumps(as_record(measured)))
    assert record["benchmark"] == "kernels"
    assert record["timings"][0]["seconds"]["median"] == measured.timings[0].seconds.median


def test_without_native_ops_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_OPS", "reference")
    backend.native_ops.cache_clear()
    try:
        with pytest.raises(BenchmarkError, match="QWILL_OPS=reference"):
            measure()
    finally:
        backend.native_ops.cache_clear()


@pytest.mark.parametrize("bad", [{"prompt_tokens": 1}, {"context": 0}, {"op_seconds": 0.0}], ids=str)
def test_settings_that_measure_nothing_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        KernelSettings(**bad)  # type: ignore[arg-type]
