"""A handful of steps on a small text: it learns, it goes on where it was, and the file runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qwill import LLM, SamplingParams
from scripts.tiny_corpus import Document
from scripts.train_tiny import Recipe, learning_rate, train

SMALL = Recipe(vocab_size=320, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=96, context=128)
SMALL = replace(SMALL, steps=12, batch_tokens=256, length=64, warmup=2, save_every=4)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint.safetensors")


@pytest.fixture(scope="module")
def trained(texts: list[Document], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(texts, SMALL, folder, folder / "out" / "tiny.gguf")


def test_it_learns(trained: tuple[Path, float]) -> None:
    assert trained[1] < math.log(SMALL.vocab_size) - 0.5


def test_the_file_runs(trained: tuple[Path, float]) -> None:
    with LLM(trained[0] / "out" / "tiny.gguf") as llm:
        (output,) = llm.generate(["The king"], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 8


def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(
    trained: tuple[Path, float], texts: list[Document], tmp_path: Path
) -> None:
    """Broken off before the rate falls, so that the shorter plan was the longer one's beginning."""
    begun = replace(SMALL, steps=6, cooling=0.01, long_share=0.0)
    train(texts, begun, tmp_path, tmp_path / "tiny.gguf")
    assert int(weights(tmp_path)["optimizer/0.step"]) == 6
    loss = train(texts, SMALL, tmp_path, tmp_path / "tiny.gguf")
    assert loss == trained[1]
    whole, resumed = weights(trained[0]), weights(tmp_path)
    assert whole.keys() == resumed.keys()
    for name, values in whole.items():
        assert torch.equal(values, resumed[name]), name


def test_the_rate_rises_stays_and_falls() -> None:
    recipe = replace(SMALL, steps=100, warmup=10, cooling=0.4, learning_rate=1.0)
    rates = [learning_rate(recipe, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:60] == [1.0] * 51
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[80] == pytest.approx(0.505)
    assert rates[99] < 0.02
