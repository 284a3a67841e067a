"""Memory over thousands of short requests: does the process still take what it took after the first few hundred?

A tiny random model with a cache so small that it is full early; prompts and answers of mixed lengths, greedy and
sampled, alone and together, some with a prefix that was seen before, some given up halfway.
"""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

from benchmarks.engine_work import Finding, Work
from qwill import LLM, SamplingParams

__all__ = ["memory"]

KV_MEMORY = 1 << 20
CONTEXT = 512
NOTES = 25
"""How often the memory is noted on the way."""


def memory(work: Work) -> list[Finding]:
    """Resident memory after all requests, over that after the early ones, less 1."""
    source = random.Random(0)
    curve: list[tuple[int, int]] = []
    marks = sorted({work.early, *(work.requests * i // NOTES for i in range(1, NOTES + 1))})
    done = 0
    with LLM(work.tiny, threads=work.threads, kv_memory=KV_MEMORY, max_model_len=CONTEXT) as llm:
        for mark in marks:
            if done < mark:  # several at once may have reached it already
                while done < mark:
                    done += some_requests(llm, source)
                curve.append((done, resident_bytes()))
    early = next(nbytes for count, nbytes in curve if count >= work.early)
    growth = curve[-1][1] / early - 1
    name = f"growth of memory from {work.early:,} to {work.requests:,} requests"
    return [Finding(name, growth, at_most=0.02, details={"requests_and_resident_bytes": curve})]


def some_requests(llm: LLM, source: random.Random) -> int:
    """Several prompts in one call, or a stream that is read to its end or given up. Returns how many requests."""
    if source.random() < 0.2:
        prompts = [_prompt(llm, source) for _ in range(source.randint(2, 8))]
        return len(llm.generate(prompts, _params(source)))
    events = llm.stream(_prompt(llm, source), _params(source))
    patience = source.randint(1, 5) if source.random() < 0.25 else CONTEXT
    for _, _event in zip(range(patience), events, strict=False):
        pass
    events.close()
    return 1


def _prompt(llm: LLM, source: random.Random) -> list[int]:
    """Every other one begins as one of ten does."""
    beginning = random.Random(source.randrange(10)) if source.random() < 0.5 else source
    length = source.randint(0, 60)
    ids = [beginning.randrange(llm.tokenizer.vocab_size) for _ in range(length)]
    return ids + [source.randrange(llm.tokenizer.vocab_size) for _ in range(source.randint(1, 140))]


def _params(source: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=source.choice((0.0, 0.7, 1.0)),
        top_k=source.choice((0, 20)),
        top_p=source.choice((0.8, 1.0)),
        presence_penalty=source.choice((0.0, 0.5)),
        logprobs=source.choice((None, None, 3)),
        max_tokens=source.randint(1, 16),
        ignore_eos=source.random() < 0.5,
    )


def resident_bytes() -> int:
    """What this process holds in memory now, garbage aside."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
