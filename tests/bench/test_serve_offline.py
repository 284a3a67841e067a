"""Offline serving: what is derived from a run, and the whole of it on a tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy
import pytest

from qwill.bench import machine
from qwill.bench.serve_offline import (
    PERCENTILES,
    acceptance,
    latencies,
    measure,
    percentiles,
    prefix_hit_share,
    record_of,
    shares_of_time,
    throughput,
)
from qwill.bench.serving import Served, Serving
from qwill.bench.workload import ServeSettings
from qwill.engine import EngineStats
from qwill.errors import BenchmarkError
from qwill.ops import native_ops
from qwill.settings import EngineSettings

STATS = EngineStats(
    steps=10, prompt_tokens=40, prefix_hit_tokens=10, drafted_tokens=8, accepted_tokens=6,
    schedule_seconds=0.1, model_seconds=1.5, sample_seconds=0.2, other_seconds=0.1,
)  # fmt: skip
SERVING = Serving(
    requests=[Served(30, 5, 10, 0.0, 1.0, 2.0), Served(10, 1, 0, 0.5, 2.5, 2.5)],
    seconds=2.5, step_seconds=1.9, idle_seconds=0.25, mean_batch=1.5, stats=STATS,
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = [random.Random(count).expovariate(1.0) for _ in range(count)]
    expected = {f"p{percent}": float(numpy.percentile(values, percent)) for percent in PERCENTILES}
    assert percentiles(values) == pytest.approx(expected)


def test_throughput_counts_everything_over_the_whole_time() -> None:
    assert throughput(SERVING) == {
        "requests_per_second": 2 / 2.5,
        "prompt_tokens_per_second": 40 / 2.5,
        "output_tokens_per_second": 6 / 2.5,
        "total_tokens_per_second": 46 / 2.5,
    }


def test_latencies_leave_out_what_a_single_token_does_not_have() -> None:
    found = latencies(SERVING)
    assert found["time_to_first_token"]["p50"] == pytest.approx(1.5)
    assert found["time_per_output_token"] == {"p50": 0.25, "p90": 0.25, "p99": 0.25}
    assert found["end_to_end"]["p50"] == pytest.approx(2.0)
    only = Serving(SERVING.requests[1:], 1.0, 1.0, 0.0, 1.0, STATS)
    assert set(latencies(only)) == {"time_to_first_token", "end_to_end"}


def test_the_time_outside_of_steps_is_the_texts_unless_nobody_was_there() -> None:
    parts = shares_of_time(SERVING)
    assert (parts["schedule"], parts["model"], parts["sample"], parts["other"]) == (0.1, 1.5, 0.2, 0.1)
    assert parts["text"] == pytest.approx(2.5 - 1.9 - 0.25)


def test_shares_of_hits_and_of_right_guesses() -> None:
    assert prefix_hit_share(SERVING) == 0.25
    assert acceptance(SERVING) == 0.75
    assert acceptance(Serving([], 1.0, 1.0, 0.0, 1.0, EngineStats())) is None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 22)
    monkeypatch.setattr(machine, "BANDWIDTH_SECONDS", 0.01)


def test_a_tiny_model_is_measured_from_end_to_end(small: None, tiny_model: Path) -> None:
    settings = ServeSettings(requests=6, prompt_tokens=(8, 20), new_tokens=(4,), shared_prefix=32, seed=7)
    measured = measure(str(tiny_model), settings, EngineSettings(threads=1, max_num_seqs=2))
    assert len(measured.serving.requests) == 6
    assert measured.serving.stats.generated_tokens == 24, "warming up does not count"
    record = json.loads(json.dumps(record_of(measured)))
    assert (record["benchmark"], record["settings"]["shared_prefix"]) == ("serve-offline", 32)
    assert record["dtype"] == ("int8" if native_ops() else "bfloat16")
    assert record["requests"][5]["new_tokens"] == 4
    assert record["part_seconds"]["model"] == record["stats"]["model_seconds"] > 0
    assert record["read_bytes_per_second"] > 0
    assert "groups" not in record


def test_lengths_beyond_the_context_are_refused_before_anything_is_loaded(tiny_model: Path) -> None:
    settings = ServeSettings(prompt_tokens=(100,), new_tokens=(50,), shared_prefix=100)
    with pytest.raises(BenchmarkError, match="200 prompt and 50 new tokens"):
        measure(str(tiny_model), settings, EngineSettings(max_model_len=249))
