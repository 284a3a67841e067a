"""Serving a workload: everybody is served, and the times are those of what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.serving import Served, Serving, serve
from qwill.bench.workload import ServeSettings, make_workload
from qwill.engine import Engine
from qwill.errors import BenchmarkError
from qwill.hub.progress import SilentProgress
from qwill.loader import load
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
from qwill.settings import EngineSettings

GREEDY = SamplingParams(temperature=0.0)
Run = Callable[..., Serving]


@pytest.fixture(scope="module")
def run(tiny_model: Path) -> Run:
    """run(limits, params, **workload) -> what came of it, with a fresh engine."""
    loaded = load(str(tiny_model), EngineSettings(threads=1, max_model_len=512, kv_memory=1 << 20), SilentProgress())

    def run(limits: Limits, params: SamplingParams = GREEDY, **workload: Any) -> Serving:
        runner = ModelRunner(loaded.model, loaded.kv_cache, loaded.device)
        engine = Engine(runner, limits, vocab_size=512, eos_token_ids=loaded.eos_token_ids)
        return serve(engine, make_workload(ServeSettings(**workload), loaded.tokenizer), params, loaded.tokenizer)

    return run


def test_every_request_gets_all_its_tokens_and_the_times_are_in_order(run: Run) -> None:
    serving = run(Limits(64, 4), requests=10, prompt_tokens=(5, 90), new_tokens=(1, 9))
    assert len(serving.requests) == 10
    for one in serving.requests:
        assert 5 <= one.prompt_tokens <= 90
        assert 0.0 == one.arrival < one.first_token <= one.last_token <= serving.seconds
        assert (one.first_token < one.last_token) == (one.new_tokens > 1)
    assert sum(one.new_tokens for one in serving.requests) == serving.stats.generated_tokens
    assert sum(one.prompt_tokens for one in serving.requests) == serving.stats.prompt_tokens


def test_no_more_requests_than_allowed_share_a_step(run: Run) -> None:
    assert 2.0 < run(Limits(512, 3), requests=9, prompt_tokens=(4,), new_tokens=(20,)).mean_batch <= 3.0
    assert run(Limits(512, 1), requests=3, prompt_tokens=(4,), new_tokens=(20,)).mean_batch == pytest.approx(1.0)


def test_the_parts_of_the_steps_are_the_steps(run: Run) -> None:
    serving = run(Limits(512, 8), requests=16, prompt_tokens=(64,), new_tokens=(16,))
    parts = [seconds for name, seconds in asdict(serving.stats).items() if name.endswith("_seconds")]
    assert sum(parts) == pytest.approx(serving.step_seconds, rel=0.1)
    assert serving.step_seconds < serving.seconds
    assert serving.idle_seconds == 0.0


def test_a_shared_prefix_is_computed_once(run: Run) -> None:
    serving = run(Limits(512, 1), requests=4, prompt_tokens=(16,), new_tokens=(2,), shared_prefix=128)
    assert serving.requests[0].cached_tokens == 0
    assert all(128 <= one.cached_tokens < 144 for one in serving.requests[1:])
    assert serving.stats.prefix_hit_tokens == sum(one.cached_tokens for one in serving.requests)


def test_nobody_is_served_before_arriving_and_the_engine_waits(run: Run) -> None:
    serving = run(Limits(512, 8), requests=5, prompt_tokens=(4,), new_tokens=(2,), rate=20.0)
    arrivals = [one.arrival for one in serving.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] > 0.0
    assert all(one.first_token > one.arrival for one in serving.requests)
    assert 0.0 < serving.idle_seconds < serving.seconds


def test_a_queue_shorter_than_the_workload_is_no_obstacle(run: Run) -> None:
    assert len(run(Limits(512, 2, max_queue=1), requests=12, prompt_tokens=(4,), new_tokens=(3,)).requests) == 12


def test_sampled_requests_are_served_as_well(run: Run) -> None:
    serving = run(Limits(512, 4), SamplingParams(temperature=1.0, top_p=0.9, seed=5), requests=6, new_tokens=(5,))
    assert [one.new_tokens for one in serving.requests] == [5] * 6


def test_a_request_that_fails_ends_the_measurement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_FAULT", "sample:bench-2")
    with pytest.raises(BenchmarkError, match="bench-2 was not served"):
        run(Limits(512, 4), requests=4, prompt_tokens=(8,), new_tokens=(1,))


def test_latencies_of_one_request() -> None:
    one = Served(10, 5, 0, arrival=1.0, first_token=1.5, last_token=3.5)
    assert (one.time_to_first_token, one.time_per_output_token, one.end_to_end) == (0.5, 0.5, 2.5)
    assert Served(10, 1, 0, 1.0, 1.5, 1.5).time_per_output_token is None
