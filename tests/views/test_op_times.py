"""Sums over a trace, against sums written out here."""

from __future__ import annotations

import pytest

from qwill import LLM, SamplingParams
from qwill.tracing import ShareRecord, StepRecord, Trace, trace
from qwill.views.op_times import OpTime, phase_of, times_of


def test_every_op_is_in_one_sum_and_none_is_lost(seen: Trace) -> None:
    ops, _ = times_of(seen)
    assert sum(one.calls for one in ops) == len(seen.ops)
    for name in ("seconds", "nbytes", "operations"):
        assert sum(getattr(one, name) for one in ops) == pytest.approx(sum(getattr(op, name) for op in seen.ops))
    assert len({(one.phase, one.op, one.module) for one in ops}) == len(ops)


def test_layers_are_taken_together(seen: Trace) -> None:
    down = [op for op in seen.ops if op.module.endswith("mlp.down_proj") and op.step > 0]
    ops, _ = times_of(seen)
    [found] = [one for one in ops if (one.phase, one.module) == ("decode", "mlp.down_proj")]
    assert (found.op, found.calls, found.dtype) == ("linear", 3 * 7, "float32")
    assert found.seconds == pytest.approx(sum(op.seconds for op in down))
    assert found.operations == 3 * 7 * 2 * 80 * 48
    modules = {one.module for one in ops}
    assert modules >= {"", "embed_tokens", "rotary", "norm", "lm_head", "self_attn", "self_attn.qkv_proj", "mlp"}
    assert not any("layers" in module for module in modules)


def share(start: int, count: int, num_logits: int, num_drafts: int = 0) -> ShareRecord:
    return ShareRecord("a", start, count, num_drafts, num_logits, (0,), 0, 5)


@pytest.mark.parametrize(
    ("shares", "phase"),
    [
        ([share(0, 5, 1)], "prefill"),
        ([share(0, 4, 0), share(0, 1, 0)], "prefill"),
        ([share(5, 1, 1)], "decode"),
        ([share(5, 1, 1), share(5, 1, 4, 3)], "decode"),
        ([share(5, 1, 1), share(0, 5, 1)], "mixed"),
    ],
)
def test_the_phase_of_a_step(shares: list[ShareRecord], phase: str) -> None:
    assert phase_of(StepRecord(0, 0.0, 0.1, tuple(shares), 4, 4, 0, ())) == phase


def test_two_requests_in_one_step_are_mixed_where_one_reads_and_the_other_writes(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with trace(llm) as seen:
        stream = llm.stream("abc", params)
        next(stream)
        llm.generate("A longer text that comes later", params)
        list(stream)
    assert [phase.phase for phase in times_of(seen)[1]] == ["prefill", "mixed", "decode"]


def test_an_op_that_took_no_time_and_moved_nothing_has_no_speed() -> None:
    one = OpTime("decode", "rows", "", "float32", "native", calls=1, seconds=0.0, nbytes=0, operations=0)
    assert (one.bytes_per_second, one.operations_per_second, one.intensity, one.name) == (0.0, 0.0, 0.0, "rows")
