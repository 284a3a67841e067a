"""What tracing costs when nobody traces, and when somebody does.

    python -m benchmarks.tracing --output benchmarks/results/tracing-MACHINE.json

Whether somebody watches is looked up at each call of an op. Here the engine's steps are made in turns, with that check
and without it, on the same weights in one process: recorded decoding steps, which call no op from Python; decoding
steps that go through Python; and prompts. Then all again after a trace was taken. Beside these, the cost of the check
itself, times the calls of a step. What is compared are medians, round by round, so that what comes and goes on the
machine meets both sides.
"""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_work import Finding, engine_of, random_ids
from qwill import LLM, SamplingParams, ops
from qwill.bench.machine import read_bandwidth
from qwill.bench.occasion import Occasion
from qwill.bench.random_model import random_model
from qwill.bench.results import write_record
from qwill.engine import Engine
from qwill.ops import backend, native_ops, reference
from qwill.quantization import PackedWeight
from qwill.request import Request
from qwill.runner import ModelRunner, Runner
from qwill.scheduler import BlockCopy, Scheduled
from qwill.tracing import trace

__all__ = ["Work", "findings", "without_the_check"]

AT_MOST = 0.005
"""What tracing may cost of the time, when nobody traces."""

Ways = dict[str, Callable[[], AbstractContextManager[None]]]


@dataclass(frozen=True)
class Work:
    """How much is measured, on what."""

    model: str
    quant: str = "int8"
    threads: int = 2
    rounds: int = 9
    prompt_tokens: int = 32
    steps: int = 120
    """Decoding steps of a round, half of them each way."""
    prefill_tokens: int = 256
    prefills: int = 6
    """Prompts of a round, half of them each way."""


def main() -> None:
    """Measure, and write the output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--model", default="random:qwen3-0.6b", help="a folder, a GGUF file or random:NAME")
    for name in ("quant", "threads", "rounds", "prompt_tokens", "steps", "prefill_tokens", "prefills"):
        default = getattr(Work, name)
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    given = vars(parser.parse_args())
    output, name = given.pop("output"), given["model"]
    if name.startswith("random:"):
        given["model"] = str(random_model(name))
    work = Work(**given)
    occasion = Occasion.now("tracing", name, replace(work, model=name))  # where it lies is this machine's business
    bandwidth = read_bandwidth(work.threads)
    found = findings(work)
    told = [{**asdict(finding), "reached": finding.reached} for finding in found]
    write_record({**asdict(occasion), "read_bandwidth": bandwidth, "findings": told}, output)
    verdicts = {True: "reached", False: "NOT REACHED", None: ""}
    for one in found:
        print(f"{one.value:12.6f}  {verdicts[one.reached]:12}{one.name}")


def findings(work: Work) -> list[Finding]:
    """All figures, in one process."""
    with LLM(work.model, quant=work.quant, threads=work.threads, prefix_cache=False) as llm:
        engine = engine_of(llm)
        found = _off(llm, engine, work, "before any trace")
        with trace(llm):
            _decode(llm, engine, work, number=-2, ways={"traced": nullcontext})
        found += _off(llm, engine, work, "after a trace")
        found += _direct(llm, engine, work)
        found.append(_on(llm, engine, work))
    return found


def _off(llm: LLM, engine: Engine, work: Work, when: str) -> list[Finding]:
    """Steps with the check against steps without it."""
    ways: Ways = {"as it is": nullcontext, "without the check": without_the_check}
    found = []
    for what, measure in _measures(llm, engine, work).items():
        rounds = [measure(number, ways) for number in range(-1, work.rounds)][1:]  # the first is for warming up
        medians = {way: [statistics.median(times[way]) for times in rounds] for way in ways}
        ratios = [one / other for one, other in zip(medians["as it is"], medians["without the check"], strict=True)]
        found.append(
            Finding(
                f"tracing off, {what}, {when}: what the check adds",
                statistics.median(ratios) - 1,
                at_most=AT_MOST,
                details={"ratios": ratios, "spread": [min(ratios), max(ratios)], "median_seconds": medians},
            )
        )
    return found


def _measures(llm: LLM, engine: Engine, work: Work) -> dict[str, Callable[[int, Ways], dict[str, list[float]]]]:
    def decode(number: int, ways: Ways) -> dict[str, list[float]]:
        return _decode(llm, engine, work, number, ways)

    def through_python(number: int, ways: Ways) -> dict[str, list[float]]:
        with _unrecorded(engine):
            return _decode(llm, engine, work, number, ways)

    def prefill(number: int, ways: Ways) -> dict[str, list[float]]:
        return _prefill(llm, engine, work, number, ways)

    return {"decode": decode, "decode through Python": through_python, "prefill": prefill}


def _decode(llm: LLM, engine: Engine, work: Work, number: int, ways: Ways) -> dict[str, list[float]]:
    """Seconds of each decoding step of one request; every step goes another way than the one before it."""
    params = SamplingParams(temperature=0, max_tokens=work.steps + 2, ignore_eos=True)
    prompt = random_ids(llm, work.prompt_tokens, 5000 + number)
    request = Request("bench", prompt, params, max_tokens=work.steps + 2)
    engine.add(request)
    while len(request.output_token_ids) < 2:  # the second one records the step, at first
        engine.step()
    names, times = list(ways), {way: [0.0] * 0 for way in ways}
    for step in range(work.steps):
        way = names[(step + number) % len(names)]
        with ways[way]():
            start = time.perf_counter()
            engine.step()
            times[way].append(time.perf_counter() - start)
    engine.finish(request)
    return times


def _prefill(llm: LLM, engine: Engine, work: Work, number: int, ways: Ways) -> dict[str, list[float]]:
    """Seconds of each prompt, up to its first token."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    names, times = list(ways), {way: [0.0] * 0 for way in ways}
    for turn in range(work.prefills):
        way = names[(turn + number) % len(names)]
        prompt = random_ids(llm, work.prefill_tokens, 100_000 + 1000 * number + turn)
        engine.add(Request("bench", prompt, params, max_tokens=1))
        with ways[way]():
            start = time.perf_counter()
            while engine.busy:
                engine.step()
            times[way].append(time.perf_counter() - start)
    return times


def _direct(llm: LLM, engine: Engine, work: Work) -> list[Finding]:
    """The check itself, timed by itself, times the calls of ops in a step, over the time of a step."""
    seconds = check_seconds()
    found = []
    for what, measure in _measures(llm, engine, work).items():
        counted: list[int] = []
        steps = len(measure(0, {"counted": partial(_counting, counted)})["counted"])
        calls, typical = len(counted) / steps, statistics.median(measure(1, {"as it is": nullcontext})["as it is"])
        found.append(
            Finding(
                f"tracing off, {what}: the check's own time times the calls, of the time",
                calls * seconds / typical,
                at_most=AT_MOST,
                details={"calls": calls, "check_seconds": seconds, "median_seconds": typical},
            )
        )
    return found


def check_seconds() -> float:
    """What one look for a watcher takes: `ops_for` as it is, less the same without the look; the least of many."""
    x, count = torch.zeros(1), 20_000
    as_it_is = min(timeit.repeat(lambda: backend.ops_for(x), number=count, repeat=9))
    without = min(timeit.repeat(lambda: _ops_for(x), number=count, repeat=9))
    return max(as_it_is - without, 0.0) / count


def _on(llm: LLM, engine: Engine, work: Work) -> Finding:
    """Decoding while somebody traces; reported, nothing is asked of it."""
    traced: list[float] = []
    plain: list[float] = []
    for number in range(work.rounds):
        plain.append(statistics.median(_decode(llm, engine, work, number, {"plain": nullcontext})["plain"]))
        with trace(llm):
            traced.append(statistics.median(_decode(llm, engine, work, number, {"traced": nullcontext})["traced"]))
    ratios = [one / other for one, other in zip(traced, plain, strict=True)]
    details = {"ratios": ratios, "traced_seconds": traced, "plain_seconds": plain}
    return Finding("tracing on: a decoding step, of one when nobody traces", statistics.median(ratios), details=details)


def _ops_for(tensor: Tensor) -> Any:
    """`qwill.ops.backend.ops_for` without the check."""
    native = native_ops() if tensor.dtype is torch.float32 and tensor.device.type == "cpu" else None
    return native or reference


def _ops_for_weight(weight: Tensor | PackedWeight) -> Any:
    """`qwill.ops.backend.ops_for_weight` without the check."""
    native = native_ops() if isinstance(weight, PackedWeight) else None
    return native or reference


@contextmanager
def without_the_check() -> Iterator[None]:
    """Ops are chosen as they were before anybody could watch."""
    with _choosing(_ops_for, _ops_for_weight):
        yield


@contextmanager
def _counting(calls: list[int]) -> Iterator[None]:
    """Each choice of ops, which is one call of an op, adds to `calls`."""

    def ops_for(tensor: Tensor) -> Any:
        calls.append(1)
        return _ops_for(tensor)

    def ops_for_weight(weight: Tensor | PackedWeight) -> Any:
        calls.append(1)
        return _ops_for_weight(weight)

    with _choosing(ops_for, ops_for_weight):
        yield


@contextmanager
def _choosing(ops_for: Callable[[Tensor], Any], ops_for_weight: Callable[..., Any]) -> Iterator[None]:
    names = vars(ops)  # where `ops.linear` and the others look these up
    before = {name: names[name] for name in ("ops_for", "ops_for_weight")}
    names.update(ops_for=ops_for, ops_for_weight=ops_for_weight)
    try:
        yield
    finally:
        names.update(before)


@contextmanager
def _unrecorded(engine: Engine) -> Iterator[None]:
    """Every step is computed from Python, none is replayed."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    engine.runner = _Unrecorded(runner)
    try:
        yield
    finally:
        engine.runner = runner


class _Unrecorded(Runner):
    """A runner that replays nothing."""

    def __init__(self, runner: ModelRunner) -> None:
        self.model, self.kv_cache, self.device = runner.model, runner.kv_cache, runner.device
        self._runner = runner

    def copy_block(self, copy: BlockCopy) -> None:
        self._runner.copy_block(copy)

    def run(self, scheduled: Sequence[Scheduled]) -> Tensor:
        return self._runner.run(scheduled, replay=False)

    def logits(self, token_ids: Sequence[int], *, all_positions: bool) -> Tensor:
        return self._runner.logits(token_ids, all_positions=all_positions)


if __name__ == "__main__":
    main()
