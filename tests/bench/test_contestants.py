"""The contestants themselves, in this process: they do the work they are told, all the same work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill.bench.contestants import CONTESTANTS, Setup
from qwill.bench.prompts import make_prompts
from qwill.tokenizer import Tokenizer

NAMES = ("qwill", "qwill-no-cache", "transformers", "transformers-no-cache")


@pytest.fixture(scope="module")
def hostile_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a generation_config.json that samples, penalizes, and ends at once."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    shutil.copytree(tiny_model, folder)
    hostile = {"do_sample": True, "temperature": 2.0, "repetition_penalty": 3.0, "max_new_tokens": 2}
    everything = list(range(512))
    (folder / "generation_config.json").write_text(json.dumps({**hostile, "eos_token_id": everything}))
    return folder


@pytest.fixture(scope="module")
def loaded(hostile_model: Path) -> dict[str, Any]:
    """Every torch contestant, loaded in float32 with as many threads as there are now."""
    threads = torch.get_num_threads()
    field = {}
    for name in NAMES:
        field[name] = CONTESTANTS[name]()
        told = field[name].load(Setup(str(hostile_model), "float32", threads, 100))
        assert (told.dtype, told.threads) == ("float32", threads)
        assert told.seconds > 0
        assert told.versions["torch"] == torch.__version__
    return field


@pytest.fixture(scope="module")
def prompt(tiny_model: Path) -> list[int]:
    return make_prompts(Tokenizer.load(tiny_model), 30, 1)[0]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_all_give_exactly_as_many_tokens_and_the_same_ones(
    loaded: dict[str, Any], prompt: list[int], count: int
) -> None:
    results = {name: one.generate(prompt, count) for name, one in loaded.items()}
    for name, result in results.items():
        assert result.token_ids == results["transformers"].token_ids, name
        assert len(result.token_ids) == len(result.seconds) == count
        assert result.seconds[0] > 0
        assert result.seconds == sorted(result.seconds)


def test_the_same_prompt_again_is_computed_again(loaded: dict[str, Any], prompt: list[int]) -> None:
    llm = loaded["qwill"]._llm
    before = llm.stats
    for _ in range(2):
        loaded["qwill"].generate(prompt, 1)
    assert llm.stats.computed_tokens - before.computed_tokens == 2 * len(prompt)


def test_all_tell_the_same_logits_and_choose_the_largest(loaded: dict[str, Any], prompt: list[int]) -> None:
    everything = list(range(512))
    rows = {name: one.logits(prompt, everything) for name, one in loaded.items()}
    for name, row in rows.items():
        torch.testing.assert_close(torch.tensor(row), torch.tensor(rows["transformers"]), atol=1e-4, rtol=0, msg=name)
    chosen = loaded["qwill"].generate(prompt, 1).token_ids[0]
    assert rows["qwill"][chosen] == max(rows["qwill"])


def test_all_work_in_bfloat16_too(tiny_model: Path, prompt: list[int]) -> None:
    for name in NAMES:
        one = CONTESTANTS[name]()
        assert one.load(Setup(str(tiny_model), "bfloat16", torch.get_num_threads(), 100)).dtype == "bfloat16"
        assert len(one.generate(prompt, 3).token_ids) == 3


def test_llama_cpp_gives_exactly_as_many_tokens(smollm2_gguf: Path) -> None:
    pytest.importorskip("xllamacpp")
    one = CONTESTANTS["llamacpp"]()
    one.load(Setup(str(smollm2_gguf), "bfloat16", 1, 64))
    prompt = make_prompts(Tokenizer.load(smollm2_gguf), 16, 1)[0]
    result = one.generate(prompt, 5)
    assert len(result.token_ids) == 5
    assert 0 < result.seconds[0] < result.seconds[1]
    assert one.logits(prompt, [1]) is None
