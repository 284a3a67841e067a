"""Everybody at once on one model: event loops, threads that wait, cancels, aborts and Ctrl-C. Answers that are complete
equal those of single runs, and afterwards nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwill import AsyncLLM, SamplingParams
from qwill.errors import OverloadedError
from qwill.outputs import RequestOutput

SECONDS = 3.0
KINDS = 40


def params(kind: int) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=kind, max_tokens=1 + kind % 20, ignore_eos=True)


def prompt(kind: int) -> list[int]:
    return [kind] + [7] * (kind % 30)


class Company:
    """Who works with one model until the time is up, and what went wrong."""

    def __init__(self, model: AsyncLLM) -> None:
        self.model = model
        self.want = {kind: self.ids(model.llm.generate(prompt(kind), params(kind))[0]) for kind in range(KINDS)}
        self.problems: list[str] = []
        self.complete = self.interrupted = 0
        self.end = time.monotonic() + SECONDS

    @staticmethod
    def ids(output: RequestOutput) -> list[int]:
        return output.outputs[0].token_ids

    @property
    def going(self) -> bool:
        return time.monotonic() < self.end

    def check(self, kind: int, output: RequestOutput) -> None:
        if output.outputs[0].finish_reason == "length":
            self.complete += 1
            if self.ids(output) != self.want[kind]:
                self.problems.append(f"{kind}: {self.ids(output)}, not {self.want[kind]}")

    async def ask(self, chance: random.Random) -> None:
        while self.going:
            kind = chance.randrange(KINDS)
            try:
                if chance.random() < 0.5:
                    self.check(kind, (await self.model.generate(prompt(kind), params(kind), request_id=f"r{kind}"))[0])
                    continue
                async for event in self.model.stream(prompt(kind), params(kind)):
                    if chance.random() < 0.02:
                        break
                    if event.output:
                        self.check(kind, event.output)
            except OverloadedError:
                await asyncio.sleep(0.002)

    async def event_loop(self, seed: int) -> None:
        chance = random.Random(seed)
        while self.going:
            tasks = [asyncio.create_task(self.ask(random.Random(chance.random()))) for _ in range(8)]
            await asyncio.sleep(chance.random() * 0.3)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self.problems += [repr(end) for end in ends if end and not isinstance(end, asyncio.CancelledError)]

    def thread(self, seed: int) -> None:
        chance = random.Random(seed)
        while self.going:
            kind = chance.randrange(KINDS)
            try:
                self.check(kind, self.model.llm.generate(prompt(kind), params(kind))[0])
            except OverloadedError:
                time.sleep(0.002)

    def disturb(self) -> None:
        chance = random.Random(5)
        while time.monotonic() < self.end - 0.5:
            time.sleep(chance.random() * 0.1)
            self.model.abort(f"r{chance.randrange(KINDS)}")
            os.kill(os.getpid(), signal.SIGINT)

    def main_thread(self) -> None:
        """Lists, which Ctrl-C ends again and again."""
        chance = random.Random(6)
        while self.going:
            kinds = [chance.randrange(KINDS) for _ in range(12)]
            try:
                outputs = self.model.llm.generate([prompt(kind) for kind in kinds], [params(kind) for kind in kinds])
                for kind, output in zip(kinds, outputs, strict=True):
                    self.check(kind, output)
            except KeyboardInterrupt:
                self.interrupted += 1


@pytest.fixture
def model(tiny_chat_model: Path) -> Iterator[AsyncLLM]:
    """One whose KV cache and queue are too small for all at once."""
    model = AsyncLLM(tiny_chat_model, max_model_len=64, max_num_seqs=12, max_queue=16, kv_memory=80_000, threads=1)
    yield model
    asyncio.run(model.aclose())


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads on this system")
def test_everybody_at_once(model: AsyncLLM) -> None:
    company = Company(model)
    threads = [threading.Thread(target=asyncio.run, args=(company.event_loop(seed),)) for seed in (1, 2)]
    threads += [threading.Thread(target=company.thread, args=(seed,)) for seed in (3, 4)]
    threads.append(threading.Thread(target=company.disturb))
    for thread in threads:
        thread.start()
    company.main_thread()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert company.problems == []
    assert company.complete > 20
    assert company.interrupted > 5
    service, engine = model.llm.service, model.llm.service.engine
    assert engine is not None
    end = time.monotonic() + 10
    while (service.busy or engine.busy) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any((service._live, service._jobs, service._steps, service._dropped, service._turns))
    assert engine.pool.num_free == engine.runner.kv_cache.num_blocks
