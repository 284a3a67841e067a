"""What tracing costs: the two sides compute the same, differ in the check alone, and leave nothing behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import tracing
from benchmarks.tracing import Work, check_seconds, findings, without_the_check
from qwill import LLM, ops
from qwill.bench import machine
from qwill.ops import backend, native_ops
from qwill.ops.observed import observing

needs_native_ops = pytest.mark.skipif(native_ops() is None, reason="the native ops are not built here")


class Watching:
    calls = 0

    def call(self, op, name, body, arguments):  # type: ignore[no-untyped-def]
        self.calls += 1
        return body(*arguments)


def test_without_the_check_nobody_can_watch_and_the_same_ops_are_chosen() -> None:
    x, half = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bfloat16)
    chosen = [ops.ops_for(x), ops.ops_for(half), ops.ops_for_weight(half)]
    with without_the_check():
        assert [ops.ops_for(x), ops.ops_for(half), ops.ops_for_weight(half)] == chosen
        with observing(watching := Watching()):
            ops.rms_norm(x, torch.ones(4), 1e-6)
        assert watching.calls == 0
    with observing(watching):
        ops.rms_norm(x, torch.ones(4), 1e-6)
    assert watching.calls == 1
    assert (ops.ops_for, ops.ops_for_weight) == (backend.ops_for, backend.ops_for_weight)


def test_the_check_takes_less_than_a_microsecond() -> None:
    assert 0.0 <= check_seconds() < 1e-6


@needs_native_ops
def test_all_is_measured_and_written(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "BANDWIDTH_SECONDS", 0.01)
    sizes = {"rounds": 2, "steps": 6, "prefill-tokens": 24, "prefills": 2, "prompt-tokens": 8, "threads": 1}
    few = [f"--{name}={size}" for name, size in sizes.items()]
    output = tmp_path / "tracing.json"
    monkeypatch.setattr(sys, "argv", ["tracing", "--output", str(output), "--model", str(tiny_model), *few])
    tracing.main()
    record = json.loads(output.read_text())
    assert record["benchmark"] == "tracing"
    assert record["settings"]["rounds"] == 2
    assert record["read_bandwidth"] > 0
    names = {one["name"]: one for one in record["findings"]}
    assert len(names) == 3 + 3 + 3 + 1
    for one in record["findings"][:6]:
        assert one["at_most"] == 0.005
        assert one["reached"] == (one["value"] <= 0.005)
        medians = one["details"]["median_seconds"]
        assert set(medians) == {"as it is", "without the check"}
        assert one["details"]["ratios"] == pytest.approx(
            [a / b for a, b in zip(medians["as it is"], medians["without the check"], strict=True)]
        )
    calls = [one["details"]["calls"] for one in record["findings"][6:9]]
    # A recorded step calls no op from Python. Each of two layers calls twelve, and five are called around them.
    assert calls == [0, 29, 29]
    on = record["findings"][-1]
    assert (on["reached"], len(on["details"]["traced_seconds"])) == (None, 2)
    assert on["value"] > 0


@needs_native_ops
def test_the_engine_is_left_as_it_was(tiny_model: Path) -> None:
    work = Work(str(tiny_model), threads=1, rounds=1, steps=2, prefill_tokens=8, prefills=2, prompt_tokens=4)
    found = findings(work)
    assert all(one.details for one in found)
    with LLM(tiny_model, threads=1) as llm:
        assert llm.generate("hi", llm.params(max_tokens=2))
    assert ops.ops_for is backend.ops_for
