"""The engine's speed: what is compared does the same work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.engine_speed import bare_loop, overhead, prefix, single
from benchmarks.engine_work import Work, engine_of, random_ids
from qwill import LLM
from qwill.ops import native_ops

needs_native_ops = pytest.mark.skipif(native_ops() is None, reason="the native ops are not built here")


@pytest.fixture
def work(tiny_model: Path) -> Work:
    return Work(str(tiny_model), quant="auto", threads=1, rounds=2, prefix_tokens=256, new_tokens=12, batch=3)


def test_each_second_request_has_the_prefix_of_its_first(work: Work) -> None:
    [found] = prefix(work)
    assert 2 * 256 <= found.details["prefix_hit_tokens"] < 3 * 256
    assert len(found.details["shares"]) == 2
    assert found.value > 0.0
    assert "256" in found.name


@needs_native_ops
def test_one_request_is_measured_in_three_ways_that_find_the_same_tokens(work: Work) -> None:
    stream, step = single(work)
    assert "LLM.stream" in stream.name
    assert "Engine.step" in step.name
    for found in (stream, step):
        assert len(found.details["tokens_per_second"]) == len(found.details["bare_tokens_per_second"]) == 2
        assert 0.0 < found.value < 1.5


@needs_native_ops
def test_the_bare_loop_takes_the_likeliest_token_each_time(work: Work) -> None:
    with LLM(work.model, threads=1) as llm:
        prompt = random_ids(llm, 20, 1)
        ids, seconds = bare_loop(engine_of(llm).runner, llm.tokenizer.vocab_size, 30)(prompt, 8)
        assert seconds > 0
        for position, token_id in enumerate(ids):
            logits = llm.logits(prompt + ids[:position])
            assert logits[token_id] >= logits.max() - torch.finfo(torch.bfloat16).eps * logits.abs().max()


def test_overhead_is_what_the_model_does_not_take(work: Work) -> None:
    [found] = overhead(work)
    assert 0.0 < found.value < 1.0
    for share, spent in zip(found.details["shares"], found.details["rounds"], strict=True):
        assert share == pytest.approx(1 - spent["model_seconds"] / spent["step_seconds"])
        assert sum(spent[f"{part}_seconds"] for part in ("schedule", "model", "sample", "other")) == pytest.approx(
            spent["step_seconds"], rel=0.2
        )
