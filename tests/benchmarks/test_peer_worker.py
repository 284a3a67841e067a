"""The process of one engine: equal work for all, and only the figures that were asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peer_worker


def test_batches_have_prompts_of_their_own_and_tokens_are_counted_over_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[list[int]], int]] = []

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        asked.append((prompts, new))
        return [new] * len(prompts)

    clock = iter(range(0, 100, 2))
    monkeypatch.setattr(peer_worker.time, "perf_counter", lambda: next(clock))
    assert peer_worker.batches(generate) == {"batch 8": 8 * 64 / 2, "batch 32": 32 * 64 / 2}
    assert [(len(prompts), new) for prompts, new in asked] == [(8, 4), (8, 64), (32, 4), (32, 64)]
    measured = [tuple(prompt) for prompts, new in asked if new == 64 for prompt in prompts]
    assert len(set(measured)) == 40
    assert {len(prompt) for prompt in measured} == {32}
    warm = {tuple(prompt) for prompts, new in asked if new == 4 for prompt in prompts}
    assert not warm & set(measured)


def test_other_work_is_refused() -> None:
    with pytest.raises(AssertionError, match="unequal work"):
        peer_worker.batches(lambda prompts, new: [new - 1] * len(prompts))


def test_only_what_is_wanted_is_measured() -> None:
    lengths: list[tuple[int, int]] = []
    begins: set[tuple[int, ...]] = set()

    def engine(model: str) -> peer_worker.Generate:
        def generate(prompt: list[int], new: int) -> list[float]:
            lengths.append((len(prompt), new))
            begins.add(tuple(prompt[:16]))
            return [0.0, *(1.0 + i / 10 for i in range(new))]

        return generate

    found = peer_worker.alone(engine, ["m"], {"decode"}, 99)
    assert found["decode"] == pytest.approx(10.0)
    assert set(found) == {"load s", "decode", "peak rss MiB"}
    assert lengths == [(32, 4), (32, 128)]
    found = peer_worker.alone(engine, ["m"], {"prefill", "deep"}, 99)
    assert found["prefill 512"] == 512.0
    assert lengths[3:] == [(512, 1), (2048, 1), (99, 32)]
    assert len(begins) == 5, "a prefix cache would spare work; the warm-ups alone are the same"


def test_our_own_engine_does_a_batch_as_it_is_told(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few(count: int, seed: int) -> list[int]:
        return [(seed * 31 + i * 7) % 500 for i in range(count)]

    monkeypatch.setattr(peer_worker, "ids", few)
    monkeypatch.setattr(peer_worker, "THREADS", 1)
    monkeypatch.setattr(sys, "argv", ["w", "qwill", str(tiny_model), "--figures", "batch", "--quant", "none"])
    try:
        peer_worker.main()
    finally:
        peer_worker.qwill_llm.cache_clear()
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(figures) == {"batch 8", "batch 32"}
    assert min(figures.values()) > 0
