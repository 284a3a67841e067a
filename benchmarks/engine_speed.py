"""Three figures of the engine's speed: what a shared prefix saves, and what the engine costs alone and in a batch.

Whatever is compared is measured in turns, round after round, on the same weights; a figure is the median of the rounds'
own ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

import torch

from benchmarks.engine_work import Finding, Work, engine_of, random_ids
from qwill import LLM, SamplingParams
from qwill.batch import Batch, KVCache, NewTokens
from qwill.engine import Engine
from qwill.errors import BenchmarkError
from qwill.ops import native_ops
from qwill.replay import DecodeReplay
from qwill.request import Request
from qwill.runner import Runner

__all__ = ["overhead", "prefix", "single"]

OWN_TOKENS = 16
"""What a request says after the prefix that it shares."""

Decode = Callable[[list[int], int], tuple[list[int], float]]
"""(prompt, new tokens) -> the new ids, and the seconds from the first of them to the last."""


def prefix(work: Work) -> list[Finding]:
    """Time to first token of a request whose prefix was seen before, as a share of the first request's."""
    firsts, seconds = [], []
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)

    with _llm(work) as llm:

        def first_token(number: int, own: int) -> float:
            prompt = random_ids(llm, work.prefix_tokens, number) + random_ids(llm, OWN_TOKENS, own)
            return llm.generate(prompt, params)[0].metrics.time_to_first_token

        first_token(0, 1)  # warm up
        for number in range(1, work.rounds + 1):
            firsts.append(first_token(number, 1000 + number))
            seconds.append(first_token(number, 2000 + number))
        hits = engine_of(llm).stats.prefix_hit_tokens
    shares = [second / first for first, second in zip(firsts, seconds, strict=True)]
    lengths = {"prefix_tokens": work.prefix_tokens, "own_tokens": OWN_TOKENS}
    details = {
        **lengths,
        "prefix_hit_tokens": hits,
        "first_seconds": firsts,
        "second_seconds": seconds,
        "shares": shares,
    }
    name = f"TTFT of a second request with a shared prefix of {work.prefix_tokens:,} tokens, of the first's"
    return [Finding(name, statistics.median(shares), at_most=0.08, details=details)]


def single(work: Work) -> list[Finding]:
    """Decoding one request through `LLM.stream` and through `Engine.step`, against nothing but model and argmax."""
    with _llm(work) as llm:
        engine = engine_of(llm)
        loop = bare_loop(engine.runner, llm.tokenizer.vocab_size, work.prompt_tokens + work.new_tokens)
        ways: dict[str, Decode] = {"bare loop": loop, "LLM.stream": _streaming(llm), "Engine.step": _stepping(engine)}
        speeds = {way: [0.0] * work.rounds for way in ways}
        for number in range(-1, work.rounds):  # the first is for warming up
            prompt = random_ids(llm, work.prompt_tokens, 3000 + number)
            found = {}
            for way in _turned(ways, number):
                found[way], seconds = ways[way](prompt, work.new_tokens)
                if number >= 0:
                    speeds[way][number] = (work.new_tokens - 1) / seconds
            if len(set(map(tuple, found.values()))) > 1:
                raise BenchmarkError(f"the ways do not find the same tokens: {found}")
    return [
        Finding(
            f"batch 1 through {way}, of the bare decode loop",
            statistics.median(one / bare for one, bare in zip(speeds[way], speeds["bare loop"], strict=True)),
            at_least=0.97,
            details={"tokens_per_second": speeds[way], "bare_tokens_per_second": speeds["bare loop"]},
        )
        for way in ("LLM.stream", "Engine.step")
    ]


def bare_loop(runner: Runner, vocab_size: int, tokens: int) -> Decode:
    """Decoding with a replayed step and argmax, in a cache of its own."""
    ops = native_ops()
    if ops is None:
        raise BenchmarkError("there are no native ops here", hint="see `qwill doctor`")
    layers, _, block_size, kv_heads, head_dim = runner.kv_cache.keys.shape
    table = list(range(-(-tokens // block_size)))
    shape = (layers, len(table), block_size, kv_heads, head_dim)
    cache = KVCache.empty(shape, dtype=runner.kv_cache.keys.dtype, device=runner.device)
    size = runner.model.config.vocab_size
    replay = DecodeReplay(ops, runner.model, cache, num_requests=1, num_tokens=1, vocab_size=size)

    def decode(prompt: list[int], new: int) -> tuple[list[int], float]:
        batch = Batch.build([NewTokens(0, len(prompt), table, 1)], cache, runner.device)
        ids = [int(runner.model(torch.tensor(prompt), batch)[0, :vocab_size].argmax())]
        start = time.perf_counter()
        for position in range(len(prompt), len(prompt) + new - 1):
            logits = replay.run(ids[-1:], [NewTokens(position, 1, table, 1)])
            ids.append(int(logits[0, :vocab_size].argmax()))
        return ids, time.perf_counter() - start

    return decode


def overhead(work: Work) -> list[Finding]:
    """What of a step's time is not the model's, when a full batch decodes."""
    shares, parts = [], []
    with _llm(work) as llm:
        engine = engine_of(llm)
        for number in range(-1, work.rounds):  # the first is for warming up
            prompts = [random_ids(llm, work.prompt_tokens, 1000 * number + i) for i in range(work.batch)]
            requests = _started(engine, prompts, 2 * work.new_tokens + work.batch)  # none ends by itself
            before, start = replace(engine.stats), time.perf_counter()
            for _ in range(work.new_tokens):
                engine.step()
            wall, done = time.perf_counter() - start, asdict(engine.stats.since(before))
            for request in requests:
                engine.finish(request)
            if number >= 0:
                spent = {key: value for key, value in done.items() if key.endswith("_seconds")}
                shares.append(1 - spent["model_seconds"] / wall)
                parts.append({"step_seconds": wall, "steps": work.new_tokens, **spent})
    name = f"engine overhead of a step of {work.batch}: (step - model) / step"
    return [Finding(name, statistics.median(shares), at_most=0.08, details={"shares": shares, "rounds": parts})]


def _llm(work: Work) -> LLM:
    return LLM(work.model, quant=work.quant, threads=work.threads)


def _turned(ways: Iterable[str], number: int) -> list[str]:
    """Every round begins with another one."""
    names = list(ways)
    first = number % len(names)
    return names[first:] + names[:first]


def _greedy(new: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)


def _streaming(llm: LLM) -> Decode:
    def decode(prompt: list[int], new: int) -> tuple[list[int], float]:
        ids: list[int] = []
        times = []
        for event in llm.stream(prompt, _greedy(new)):
            ids += event.token_ids
            if event.token_ids:
                times.append(time.perf_counter())
        return ids, times[-1] - times[0]

    return decode


def _stepping(engine: Engine) -> Decode:
    def decode(prompt: list[int], new: int) -> tuple[list[int], float]:
        [request] = _started(engine, [prompt], new)
        start = time.perf_counter()
        while engine.busy:
            engine.step()
        return request.output_token_ids, time.perf_counter() - start

    return decode


def _started(engine: Engine, prompts: list[list[int]], new: int) -> list[Request]:
    """One greedy request for each prompt, each with its first new token."""
    requests = [Request(f"bench-{i}", prompt, _greedy(new), max_tokens=new) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while not all(request.output_token_ids for request in requests):
        engine.step()
    return requests
