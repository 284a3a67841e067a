"""A draft model beside the engine: the same tokens, fewer steps, and nothing left behind. On native kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwill.batch import KVCache
from qwill.config import load_config
from qwill.draft_model import DraftModel
from qwill.engine import Engine
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.packing import Packing
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
from qwill.speculative import Speculation
from qwill.weights import load_model

if native_ops() is None:
    pytest.skip("the native kernels were not built, or are not wanted", allow_module_level=True)

CPU = torch.device("cpu")
Load = Callable[[int], CausalLM]


@pytest.fixture(scope="module")
def load(tiny_checkpoint: Callable[..., Path]) -> Load:
    def loaded(layers: int) -> CausalLM:
        folder = tiny_checkpoint("qwen3", num_hidden_layers=layers)
        packing = Packing(torch.float32, "int8")
        with open_checkpoint(folder) as checkpoint:
            return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU, packing=packing)

    return loaded


def runner_of(model: CausalLM, blocks: int) -> ModelRunner:
    cache = KVCache.empty((model.config.num_layers, blocks, 4, 2, 16), dtype=torch.bfloat16, device=CPU)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return ModelRunner(model, cache, CPU)


def run(model: CausalLM, draft: DraftModel | None, blocks: int) -> tuple[list[list[int]], Engine]:
    """The answers to five prompts, and the engine that gave them."""
    speculation = None if draft is None else Speculation(draft, max_tokens=4, clock=lambda: 0.0)
    if speculation is not None:
        for tokens in (1, 30):
            speculation.note_step(tokens=tokens, seconds=1e6)  # rows are free, for as long as it is remembered
    engine = Engine(
        runner_of(model, blocks), Limits(64), vocab_size=311, eos_token_ids=frozenset([3]), speculation=speculation
    )
    choose = random.Random(1)
    prompts = [choose.choices(range(311), k=length) for length in (1, 40, 9, 17, 5)]
    kinds = [SamplingParams(temperature=0.0), SamplingParams(seed=4), SamplingParams(temperature=0.3, seed=5)]
    requests = [Request(str(n), prompt, kinds[n % 3], max_tokens=30) for n, prompt in enumerate(prompts)]
    for one in requests:
        engine.add(one)
    for _ in range(1000):
        if engine.busy:
            assert not any(output.error for output in engine.step())
    return [one.output_token_ids for one in requests], engine


@pytest.mark.parametrize(("blocks", "draft_blocks"), [(100, 100), (24, 100), (100, 12), (24, 5)])
def test_tokens_are_those_without_it(load: Load, blocks: int, draft_blocks: int) -> None:
    target = load(3)
    want, _ = run(target, None, 100)
    draft = DraftModel(runner_of(load(1), draft_blocks), vocab_size=311, max_batch_tokens=30)
    got, engine = run(target, draft, blocks)
    assert got == want
    assert (engine.stats.preemptions > 0) == (blocks < 100)
    assert engine.stats.drafted_tokens > 0
    assert draft.num_free_blocks == draft_blocks
    assert engine.pool.num_free == blocks


def test_a_draft_equal_to_the_target_is_always_right(load: Load) -> None:
    target = load(2)
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    one = Request("r", [5, 6, 7], params, max_tokens=100)
    speculation = Speculation(
        DraftModel(runner_of(target, 50), vocab_size=311, max_batch_tokens=64), max_tokens=4, clock=lambda: 0.0
    )
    engine = Engine(
        runner_of(target, 50), Limits(64), vocab_size=311, eos_token_ids=frozenset(), speculation=speculation
    )
    engine.add(one)
    while engine.busy:
        engine.step()
    assert len(one.output_token_ids) == 100
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 0
