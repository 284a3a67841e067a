"""The tables of offline serving."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from qwill.bench.results import Measurement
from qwill.bench.serve_offline import ServeMeasurement
from qwill.bench.serving import Served, Serving
from qwill.bench.serving_report import print_serving
from qwill.engine import EngineStats

MACHINE = {"cpu": "A CPU", "usable_cores": 2, "python": "3.11", "versions": {"qwill": "0"}}
SETTINGS: dict[str, Any] = {
    "requests": 2, "prompt_tokens": (10, 30), "new_tokens": (5,), "shared_prefix": 0, "rate": 0.0, "sampled": False,
    "max_num_seqs": 8,
}  # fmt: skip
STATS = EngineStats(
    steps=10, prompt_tokens=40, prefix_hit_tokens=10, schedule_seconds=0.1, model_seconds=1.6, sample_seconds=0.2,
    other_seconds=0.1, preemptions=3,
)  # fmt: skip
SERVING = Serving([Served(30, 5, 10, 0.0, 1.0, 2.0), Served(10, 5, 0, 0.0, 1.5, 2.5)], 2.5, 2.0, 0.0, 1.5, STATS)


def printed(serving: Serving = SERVING, **settings: Any) -> str:
    about = Measurement(
        "serve-offline", "m", "qwen3", 10**6, "int8", 2, "now", MACHINE, 2e10, SETTINGS | settings, [], ["a [note]"]
    )
    out = io.StringIO()
    print_serving(ServeMeasurement(about, serving, 300 << 20, 10**9), out)
    return out.getvalue()


def test_throughput_latency_and_time_are_shown() -> None:
    text = printed()
    assert "2 requests of 10 – 30 prompt tokens and 5 new ones, greedy; all at once, at most 8 at a time" in text
    assert "served in 2.50 s" in text
    row = next(line for line in text.splitlines() if "25%" in line)
    assert row.split() == ["0.80", "16.0", "4.00", "20.0", "1.50", "25%", "3", "–", "6.25", "(31%)", "300"]
    assert next(line for line in text.splitlines() if "TTFT " in line).split() == ["TTFT", "1250", "1450", "1495"]
    assert next(line for line in text.splitlines() if "model " in line).split() == ["model", "1.60", "64.0%", "160"]
    assert next(line for line in text.splitlines() if "text " in line).split() == ["text", "0.50", "20.0%", "50.0"]
    assert "a [note]" in text


def test_guesses_prefixes_rates_and_sampling_are_told_where_there_are_any() -> None:
    guessing = replace(SERVING, stats=replace(STATS, drafted_tokens=10, accepted_tokens=9))
    text = printed(guessing, shared_prefix=99, rate=2.5, sampled=True)
    assert "90%" in text
    assert "after a shared prefix of 99" in text
    assert "sampled; 2.5 arrive per second" in text
