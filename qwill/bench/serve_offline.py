"""Serving without a server: many requests through the engine, how many it finishes per second and how long each waits.

Everything happens in this process, on token ids and the text made of them; there is no network in the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from qwill.bench.machine import peak_rss, read_bandwidth, warm_page_cache
from qwill.bench.notes import warnings
from qwill.bench.occasion import Occasion
from qwill.bench.results import Measurement, as_record
from qwill.bench.target import find_target
from qwill.bench.workload import ServeSettings, make_workload, warm_up
from qwill.hub.progress import Progress, SilentProgress
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.bench.serving import Serving
    from qwill.llm import LLM

__all__ = [
    "PERCENTILES",
    "ServeMeasurement",
    "acceptance",
    "latencies",
    "measure",
    "percentiles",
    "prefix_hit_share",
    "record_of",
    "shares_of_time",
    "throughput",
]

PERCENTILES = (50, 90, 99)

HOW_TO_READ = (
    "TTFT and end to end: from a request's arrival, waiting included; batch: requests that got a token in a step, over "
    "time; text: making text of tokens, handing over requests; GB/s: the weights, once per step, over the model's time"
)


@dataclass(frozen=True)
class ServeMeasurement:
    """What was measured, and where: `about` has no rows."""

    about: Measurement
    serving: Serving
    peak_rss: int
    """Bytes."""
    weight_bytes: int
    """What one step reads at least."""

    @property
    def read_speed(self) -> float:
        """Bytes of weights read per second of the model's time."""
        return self.weight_bytes * self.serving.stats.steps / self.serving.stats.model_seconds


def measure(
    model: str,
    settings: ServeSettings | None = None,
    engine: EngineSettings | None = None,
    *,
    progress: Progress | None = None,
) -> ServeMeasurement:
    """Serve a workload with one model. `model` is any name that LLM takes, or `random:qwen3-0.6b`.

    Raises:
        BenchmarkError: the lengths do not fit into the model's context, or a request failed.
        QwillError: the model cannot be found, fetched or loaded.
    """
    from qwill.llm import LLM

    settings, engine = settings or ServeSettings(), engine or EngineSettings()
    progress = progress or SilentProgress()
    occasion = Occasion.now("serve-offline", model, settings, engine)
    prompt, new = settings.longest
    target = find_target(model, engine, progress, prompt_tokens=prompt, new_tokens=new, count=1)
    warm_page_cache(target.path)
    bandwidth = read_bandwidth(target.setup.threads)
    with LLM(target.path, progress=progress, **asdict(replace(engine, threads=target.setup.threads))) as llm:
        serving = _serve(llm, settings, engine, progress)
        about = occasion.measured(target, [], read_bandwidth=bandwidth)
        notes = [HOW_TO_READ, *warnings(occasion.machine, llm.dtype)]
        return ServeMeasurement(
            about=replace(about, dtype=llm.dtype, threads=llm.threads, notes=notes),
            serving=serving,
            peak_rss=peak_rss(),
            weight_bytes=llm.decode_bytes,
        )


def _serve(llm: LLM, settings: ServeSettings, engine: EngineSettings, progress: Progress) -> Serving:
    """Warm up, then serve what is measured, with the engine inside an LLM that nobody else uses."""
    from qwill.bench.serving import serve

    running, tokenizer = llm.service.engine, llm.tokenizer
    assert running is not None
    params = replace(llm.default_params, seed=settings.seed) if settings.sampled else SamplingParams(temperature=0.0)
    serve(running, warm_up(min(settings.requests, engine.max_num_seqs), tokenizer), params, tokenizer)
    workload = make_workload(settings, tokenizer)
    progress.start(settings.requests, "serve", unit="requests")
    try:
        return serve(running, workload, params, tokenizer, served=lambda: progress.advance(1))
    finally:
        progress.finish()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99 of at least one value, between neighbours in proportion."""
    ordered = sorted(values)
    found = {}
    for percent in PERCENTILES:
        below, part = divmod((len(ordered) - 1) * percent, 100)
        above = min(below + 1, len(ordered) - 1)
        found[f"p{percent}"] = ordered[below] + (ordered[above] - ordered[below]) * part / 100
    return found


def throughput(serving: Serving) -> dict[str, float]:
    """Requests and tokens per second of the whole time."""
    prompt = sum(request.prompt_tokens for request in serving.requests)
    output = sum(request.new_tokens for request in serving.requests)
    counts = {"requests": len(serving.requests), "prompt_tokens": prompt, "output_tokens": output}
    return {
        f"{name}_per_second": count / serving.seconds
        for name, count in {**counts, "total_tokens": prompt + output}.items()
    }


def latencies(serving: Serving) -> dict[str, dict[str, float]]:
    """Percentiles in seconds; of the time per output token only where answers have more than one."""
    requests = serving.requests
    each = [request.time_per_output_token for request in requests]
    found = {
        "time_to_first_token": [request.time_to_first_token for request in requests],
        "time_per_output_token": [seconds for seconds in each if seconds is not None],
        "end_to_end": [request.end_to_end for request in requests],
    }
    return {name: percentiles(seconds) for name, seconds in found.items() if seconds}


def shares_of_time(serving: Serving) -> dict[str, float]:
    """Seconds by part, waiting for arrivals aside: a step's four parts, and the text outside of steps."""
    stats = serving.stats
    return {
        "schedule": stats.schedule_seconds,
        "model": stats.model_seconds,
        "sample": stats.sample_seconds,
        "other": stats.other_seconds,
        "text": max(0.0, serving.seconds - serving.step_seconds - serving.idle_seconds),
    }


def prefix_hit_share(serving: Serving) -> float:
    """Prompt tokens that came from the prefix cache, of all."""
    return serving.stats.prefix_hit_tokens / serving.stats.prompt_tokens


def acceptance(serving: Serving) -> float | None:
    """Guesses that were right, of all; None where nothing was guessed."""
    stats = serving.stats
    return stats.accepted_tokens / stats.drafted_tokens if stats.drafted_tokens else None


def record_of(measured: ServeMeasurement) -> dict[str, Any]:
    """Everything as plain data for JSON: each request, and the figures that the table shows."""
    serving = measured.serving
    head = {name: value for name, value in as_record(measured.about).items() if name != "groups"}
    return {
        **head,
        **throughput(serving),
        "latency_seconds": latencies(serving),
        "part_seconds": shares_of_time(serving),
        "prefix_hit_share": prefix_hit_share(serving),
        "acceptance": acceptance(serving),
        "peak_rss": measured.peak_rss,
        "weight_bytes": measured.weight_bytes,
        "read_bytes_per_second": measured.read_speed,
        **asdict(serving),
        "requests": [_rounded(asdict(request)) for request in serving.requests],
    }


def _rounded(times: dict[str, Any]) -> dict[str, Any]:
    """To microseconds."""
    return {name: round(value, 6) for name, value in times.items()}
