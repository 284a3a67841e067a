"""A step's requests become rows of logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwill.batch import KVCache
from qwill.config import load_config
from qwill.formats import open_checkpoint
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Scheduled
from qwill.weights import load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runner(tiny_checkpoint: Callable[..., Path]) -> ModelRunner:
    folder = tiny_checkpoint("qwen3")
    with open_checkpoint(folder) as checkpoint:
        model = load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU)
    return ModelRunner(model, KVCache.empty((3, 8, 4, 2, 16), dtype=torch.float32, device=CPU), CPU)


def request(tokens: list[int], computed: int = 0, *, use_cache: bool = True) -> Request:
    blocks = [6, 1, 3] if use_cache else []
    return Request(
        "r", tokens, SamplingParams(), 9, num_computed_tokens=computed, block_table=blocks, use_cache=use_cache
    )


def test_only_requests_that_reach_their_last_token_get_a_row(runner: ModelRunner) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7]
    assert runner.run([Scheduled(request(tokens), 4)]).shape == (0, 311)
    row = runner.run([Scheduled(request(tokens, computed=4), 3)])
    torch.testing.assert_close(row, runner.logits(tokens, all_positions=False), atol=1e-5, rtol=0)


def test_without_a_cache_nothing_is_written_to_it(runner: ModelRunner) -> None:
    runner.kv_cache.keys.fill_(7.0)
    row = runner.run([Scheduled(request([1, 2, 3], use_cache=False), 3)])
    assert (runner.kv_cache.keys == 7.0).all()
    torch.testing.assert_close(row, runner.logits([1, 2, 3], all_positions=False))
