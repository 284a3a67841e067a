"""Ops say where in the model they were called, and what they cost."""

from __future__ import annotations

import pytest

from qwill import LLM, SamplingParams
from qwill.tracing import trace

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = "Shall I compare thee to a summer's day? 你好 🙂"


def test_ops_say_where_they_were_called_and_what_they_cost(llm: LLM) -> None:
    with trace(llm) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="ops")
    config, count = llm.config, len(PROMPT.encode())
    first = [op for op in seen.ops if op.step == 0]
    layers = config.num_layers
    names = [op.op for op in first]
    assert names.count("attention") == layers
    assert names.count("linear") == 4 * layers + 1
    assert names.count("rope") == 2 * layers
    down = next(op for op in first if op.module == "model.layers.2.mlp.down_proj")
    assert (down.layer, down.op, down.output) == (2, "linear", (count, config.hidden_size))
    assert down.operations == 2 * count * config.intermediate_size * config.hidden_size
    floats = config.intermediate_size * config.hidden_size + count * (config.intermediate_size + 2 * config.hidden_size)
    assert down.nbytes == pytest.approx(4 * floats, rel=0.1)  # packed weights are padded
    attend = next(op for op in first if op.op == "attention")
    assert attend.module == "model.layers.0.self_attn"
    assert attend.operations == 4 * config.num_heads * config.head_dim * count * (count + 1) // 2
    assert all(op.seconds > 0 for op in first)
    assert all(a.start + a.seconds <= b.start for a, b in zip(seen.ops, seen.ops[1:], strict=False))
    assert sum(op.seconds for op in first) <= seen.steps[0].seconds
