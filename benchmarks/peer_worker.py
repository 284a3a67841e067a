"""One engine, one process: `peer_worker.py qwill|openvino|ort MODEL [options]` prints a line of JSON.

Runs in the engine's own environment, so it imports nothing of ours but for qwill itself. Greedy, EOS ignored, two
threads, the same random token ids for all. An engine is a function (ids, new tokens) -> arrival times of the new
tokens, the time of the call first; for many prompts at once, (prompts, new tokens) -> how many new tokens each got.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import time
from collections.abc import Callable
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[list[int], int], list[float]]
GenerateBatch = Callable[[Prompts, int], list[int]]

THREADS = 2
BATCHES = (8, 32)
BATCH_PROMPT, BATCH_NEW = 32, 64


def main() -> None:
    """Measure one engine and print its figures."""
    options = parse()
    arguments = [options.model, *([options.quant] if options.quant else [])]
    wanted, figures = set(options.figures), dict[str, float]()
    if wanted & {"decode", "prefill", "deep"}:
        figures |= alone(ENGINES[options.engine], arguments, wanted, options.deep)
    if "batch" in wanted and options.engine in BATCH_ENGINES:
        figures |= batches(BATCH_ENGINES[options.engine](*arguments))
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    """The command line; benchmarks/peers.py writes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--figures", nargs="+", required=True)
    parser.add_argument("--deep", type=int, default=0)
    parser.add_argument("--quant", default="")
    return parser.parse_args()


def alone(engine: Callable[..., Generate], arguments: list[str], wanted: set[str], deep: int) -> dict[str, float]:
    """The figures of one request at a time, in the order in which they have always been taken."""
    start = time.perf_counter()
    generate = engine(*arguments)
    figures = {"load s": time.perf_counter() - start}
    generate(ids(32, 99), 4)  # warm up
    if "decode" in wanted:
        figures["decode"] = decode(generate, 32, 128, 1)
    figures["peak rss MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if "prefill" in wanted:
        for length in (512, 2048):
            figures[f"prefill {length}"] = prefill(generate, length, length)  # none begins as another did
    if "deep" in wanted and deep:
        figures["deep"] = decode(generate, deep, 32, 7)
    return figures


def batches(generate: GenerateBatch) -> dict[str, float]:
    """New tokens per second of all requests together, their prompts' time included; each prompt is another one."""
    figures = {}
    for size in BATCHES:
        generate([ids(BATCH_PROMPT, seed) for seed in range(size)], 4)  # warm up
        prompts = [ids(BATCH_PROMPT, 1000 * size + number) for number in range(size)]
        start = time.perf_counter()
        given = generate(prompts, BATCH_NEW)
        seconds = time.perf_counter() - start
        assert given == [BATCH_NEW] * size, f"unequal work: {given} new tokens"
        figures[f"batch {size}"] = size * BATCH_NEW / seconds
    return figures


def ids(count: int, seed: int) -> list[int]:
    """Random ordinary tokens."""
    source = random.Random(seed)
    return [source.randrange(1000, 40000) for _ in range(count)]


def decode(generate: Generate, prompt: int, new: int, seed: int) -> float:
    """Tokens per second after the first."""
    times = generate(ids(prompt, seed), new)
    return (new - 1) / (times[-1] - times[1])


def prefill(generate: Generate, length: int, seed: int) -> float:
    """Prompt tokens per second up to the first new one."""
    times = generate(ids(length, seed), 1)
    return length / (times[1] - times[0])


@functools.cache
def qwill_llm(model: str, quant: str) -> Any:
    """One model for all figures."""
    from qwill import LLM

    return LLM(model, quant=quant, threads=THREADS, max_model_len=4608)


def qwill(model: str, quant: str) -> Generate:
    """The engine of this repository, through its public interface."""
    from qwill import SamplingParams

    llm = qwill_llm(model, quant)

    def generate(prompt: list[int], new: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True)
        times = [time.perf_counter()]
        for event in llm.stream(prompt, params):
            times += [time.perf_counter()] * len(event.token_ids)
        return times

    return generate


def qwill_batch(model: str, quant: str) -> GenerateBatch:
    """The same, with all prompts in one call."""
    from qwill import SamplingParams

    llm = qwill_llm(model, quant)

    def generate(prompts: Prompts, new: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True)
        return [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

    return generate


def openvino(model: str) -> Generate:
    """OpenVINO GenAI."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(model, "CPU", {"INFERENCE_NUM_THREADS": THREADS})

    def generate(prompt: list[int], new: int) -> list[float]:
        start = time.perf_counter()
        result = pipeline.generate(openvino.Tensor(np.array([prompt], dtype=np.int64)), openvino_plan(new))
        arrivals = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds on a clock of its own
        first = start + result.perf_metrics.get_ttft().mean / 1000
        return [start, *(first + (each - arrivals[0]) / 1000 for each in arrivals)]

    return generate


def openvino_batch(model: str) -> GenerateBatch:
    """OpenVINO GenAI's continuous batching, with room for all requests at once; no prompt has a prefix to share."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    plan = genai.SchedulerConfig()
    plan.cache_size, plan.max_num_seqs, plan.max_num_batched_tokens = 2, 64, 2048  # GB, requests, tokens
    plan.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(model, plan, "CPU", {"INFERENCE_NUM_THREADS": THREADS})

    def generate(prompts: Prompts, new: int) -> list[int]:
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        handles = [pipeline.add_request(number, each, openvino_plan(new)) for number, each in enumerate(tensors)]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return [sum(len(output.generated_ids) for output in handle.read_all()) for handle in handles]

    return generate


def openvino_plan(new: int) -> Any:
    """Greedy, exactly so many new tokens."""
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new
    config.ignore_eos, config.do_sample = True, False
    return config


def ort(model: str) -> Generate:
    """ONNX Runtime GenAI."""
    import onnxruntime_genai as genai

    loaded = genai.Model(model)

    def generate(prompt: list[int], new: int) -> list[float]:
        params = genai.GeneratorParams(loaded)
        params.set_search_options(
            max_length=len(prompt) + new, min_length=len(prompt) + new, do_sample=False, batch_size=1
        )
        times = [time.perf_counter()]
        generator = genai.Generator(loaded, params)
        generator.append_tokens(prompt)
        for _ in range(new):
            generator.generate_next_token()
            times.append(time.perf_counter())
        return times

    return generate


ENGINES: dict[str, Callable[..., Generate]] = {"qwill": qwill, "openvino": openvino, "ort": ort}
BATCH_ENGINES: dict[str, Callable[..., GenerateBatch]] = {"qwill": qwill_batch, "openvino": openvino_batch}


if __name__ == "__main__":
    main()
