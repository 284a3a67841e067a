"""Models of random weights: right sizes, the same every time, and accepted by transformers."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill.bench.random_model import SIZES, is_random, random_model, write_random_model
from qwill.checkpoint_names import expected_tensors
from qwill.config import config_from_json
from qwill.errors import ModelNotFoundError
from qwill.tokenizer import Tokenizer


def test_the_benchmark_model_has_the_sizes_of_qwen3(tmp_path: Path) -> None:
    from qwill.bench.random_model import _QWEN3

    (tmp_path / "config.json").write_text(json.dumps({**_QWEN3, **SIZES["qwen3-0.6b"]}))
    config = config_from_json(tmp_path)
    assert sum(math.prod(shape) for shape in expected_tensors(config).values()) == 596_049_920  # the model card's 0.6 B
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (28, 16, 8, 128)
    assert (config.rope_theta, config.rms_norm_eps, config.tie_word_embeddings) == (1e6, 1e-6, True)


def test_transformers_finds_every_tensor_and_no_other(tiny_model: Path) -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    weight = model.model.layers[1].mlp.up_proj.weight.detach().float()
    assert 0.018 < float(weight.std()) < 0.022
    assert torch.equal(model.model.norm.weight.detach().float(), torch.ones(64))


def test_the_same_weights_are_written_every_time(tiny_model: Path, tmp_path: Path) -> None:
    write_random_model(tmp_path / "again", "qwen3-tiny")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        first, second = ((folder / name).read_bytes() for folder in (tiny_model, tmp_path / "again"))
        assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_its_tokenizer_has_every_id_and_writes_bytes(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    assert tokenizer.vocab_size == SIZES["qwen3-tiny"]["vocab_size"]
    for text in ("plain", "你好 👩‍👩‍👧", "\t\r\n "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode(text)) == len(text.encode())


def test_it_is_written_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    half_done = tmp_path / "random" / "qwen3-tiny.partial"
    half_done.mkdir(parents=True)
    (half_done / "config.json").write_text("from a run that was killed")
    folder = random_model("random:qwen3-tiny")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert random_model("random:qwen3-tiny") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert not half_done.exists()


@pytest.mark.parametrize("name", ["random:", "random:../x", "random:qwen3-0.6b/..", "random:nothing"])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    assert is_random(name)
    with pytest.raises(ModelNotFoundError, match=r"known: qwen3-0\.6b"):
        random_model(name)
    assert list(tmp_path.iterdir()) == []


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    class Counter:
        total = done = 0

        def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
            self.total = total

        def advance(self, count: int, item: str = "") -> None:
            self.done += count

        def message(self, text: str) -> None: ...

        def finish(self) -> None: ...

    counter: Any = Counter()
    write_random_model(tmp_path / "m", "qwen3-tiny", counter)
    assert counter.done == counter.total > 300_000
