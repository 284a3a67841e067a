"""One engine, one process: `peer_worker.py qwill|openvino|ort MODEL DEEP [QUANT]` prints a line of JSON.

Runs in the engine's own environment, so it imports nothing of ours but for qwill itself. Greedy, EOS ignored, two
threads, the same random token ids for all. An engine is a function (ids, new tokens) -> arrival times of the new
tokens, the time of the call first.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[int], int], list[float]]


def main() -> None:
    """Measure one engine and print its figures."""
    engine, model, deep, *quant = sys.argv[1:]
    start = time.perf_counter()
    engines: dict[str, Callable[..., Generate]] = {"qwill": qwill, "openvino": openvino, "ort": ort}
    generate = engines[engine](model, *quant)
    figures = {"load s": time.perf_counter() - start}
    generate(ids(32, 99), 4)  # warm up
    figures["decode"] = decode(generate, 32, 128, 1)
    figures["peak rss MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for length in (512, 2048):
        figures[f"prefill {length}"] = prefill(generate, length, 2)
    if int(deep):
        figures["deep"] = decode(generate, int(deep), 32, 7)
    print(json.dumps(figures))


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


def qwill(model: str, quant: str) -> Generate:
    """The engine of this repository, through its public interface."""
    from qwill import LLM, SamplingParams

    llm = LLM(model, quant=quant, threads=2, max_model_len=4608)

    def generate(prompt: list[int], new: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True)
        times = [time.perf_counter()]
        for event in llm.stream(prompt, params):
            times += [time.perf_counter()] * len(event.token_ids)
        return times

    return generate


def openvino(model: str) -> Generate:
    """OpenVINO GenAI."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(model, "CPU", {"INFERENCE_NUM_THREADS": 2})

    def generate(prompt: list[int], new: int) -> list[float]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.ignore_eos, config.do_sample = True, False
        start = time.perf_counter()
        result = pipeline.generate(openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
        arrivals = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds on a clock of its own
        first = start + result.perf_metrics.get_ttft().mean / 1000
        return [start, *(first + (each - arrivals[0]) / 1000 for each in arrivals)]

    return generate


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


if __name__ == "__main__":
    main()
