"""Steps say what was computed for whom, and where it lies in the cache."""

from __future__ import annotations

from qwill import LLM, SamplingParams
from qwill.tracing import trace

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = "Shall I compare thee to a summer's day? 你好 🙂"


def test_steps_say_what_was_computed_where(llm: LLM) -> None:
    with trace(llm) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="steps", request_id="mine")
    count = len(PROMPT.encode())
    assert [(s.shares[0].start, s.shares[0].count) for s in seen.steps] == [(0, count)] + [
        (count + i, 1) for i in range(8)
    ]
    last = seen.steps[-1].shares[0]
    assert len(last.block_table) == -(-(count + 8) // seen.block_size)
    assert last.request_id == "mine"
    assert all(s.num_blocks >= s.free_blocks for s in seen.steps)
    assert seen.steps[0].start + seen.steps[0].seconds <= seen.steps[1].start
