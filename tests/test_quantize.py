"""A folder quantized: every tensor near what it was, side files kept, nothing lost when something goes wrong."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwill.checkpoint_names import expected_tensors, match_tensors
from qwill.config import config_from_json, load_config
from qwill.errors import DiskSpaceError, UsageError, WeightsError
from qwill.formats import open_checkpoint
from qwill.hub.progress import SilentProgress
from qwill.quantization import PackedWeight
from qwill.quantize import QuantizedFolder, quantize_folder
from qwill.quantized_checkpoint import stored_part

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 250, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model of random bf16 weights, with the redundant head that Qwen3-0.6B has too."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "secret.bin").write_text("not ours")
    shapes = expected_tensors(config_from_json(folder))
    tensors = {name: (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


def quantized(model: Path, out: Path, quant: str = "int4", *, force: bool = False) -> QuantizedFolder:
    return quantize_folder(model, out, quant, force=force, progress=SilentProgress())


@pytest.mark.parametrize(("quant", "most"), [("int4", 0.12), ("int8", 0.01)])
def test_every_tensor_is_near_what_it_was(model: Path, tmp_path: Path, quant: str, most: float) -> None:
    made = quantized(model, tmp_path / "out", quant)
    before = load_file(model / "model.safetensors")
    config = load_config(made.path)
    with open_checkpoint(made.path) as checkpoint:
        match = match_tensors(checkpoint, config)
        assert (match.missing, match.unused, match.wrong_shape) == ({}, [], [])
        for name, info in match.found.items():
            want = before[name].float()
            if len(info.shape) == 1:
                assert checkpoint.raw(name).tobytes() == before[name].view(torch.uint8).numpy().tobytes()
                continue
            have = PackedWeight(info.shape[1], (stored_part(info),)).dequantize()
            assert (have - want).norm() < most * want.norm(), name


def test_the_report_counts_what_was_written(model: Path, tmp_path: Path) -> None:
    made = quantized(model, tmp_path / "out", "int8")
    assert made.weights == sum(torch.Size(s).numel() for s in expected_tensors(load_config(model)).values())
    assert made.source_bytes == 2 * made.weights
    assert made.formats.keys() == {"int8", "BF16"}
    size = (made.path / "model.safetensors").stat().st_size
    assert 0 < size - made.weight_bytes < 8192
    assert 8.5 < made.bits_per_weight < 9


def test_side_files_come_along_and_config_says_what_it_is(model: Path, tmp_path: Path) -> None:
    made = quantized(model, tmp_path / "deeper" / "out")
    assert sorted(file.name for file in made.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    config = json.loads((made.path / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "qwill", "version": 1, "quant": "int4"}
    assert config == CONFIG
    assert list(made.path.parent.iterdir()) == [made.path]


def test_a_model_is_only_replaced_when_asked(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantized(model, out, "int8")
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="there is a model of this name") as caught:
        quantized(model, out)
    assert "--force" in caught.value.hint
    assert (out / "model.safetensors").read_bytes() == before
    quantized(model, out, force=True)
    assert (out / "model.safetensors").stat().st_size < len(before)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "out"]


def test_an_empty_folder_is_filled(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert quantized(model, tmp_path / "out").path == tmp_path / "out"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_no_model_is_never_replaced(model: Path, tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    kept = out if what == "file" else out / "thesis.txt"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    with pytest.raises(UsageError, match="something else of this name"):
        quantized(model, out, force=True)
    assert kept.read_text() == "years of work"


def test_the_model_itself_and_what_holds_it_are_never_replaced(model: Path) -> None:
    for out in (model, model.parent, model / ".." / "model"):
        with pytest.raises(UsageError, match="would replace the model itself"):
            quantized(model, out, force=True)


def test_a_failure_half_way_leaves_nothing_and_keeps_what_was(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantized(model, out)
    before = (out / "model.safetensors").read_bytes()
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 3] = float("nan")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(WeightsError, match="NaN"):
        quantized(model, out, force=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "out"]


def test_an_interrupt_leaves_nothing(model: Path, tmp_path: Path) -> None:
    class Interrupted(SilentProgress):
        def advance(self, count: int, item: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_folder(model, tmp_path / "out", "int4", force=False, progress=Interrupted())
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_told_before_the_work(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1000))
    with pytest.raises(DiskSpaceError, match=r"needs .* kB, but only 1.0 kB are free"):
        quantized(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_told(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskSpaceError, match="the folder cannot be written"):
        quantized(model, tmp_path / "file" / "out")


def test_a_quantized_model_is_not_quantized_again(model: Path, tmp_path: Path) -> None:
    quantized(model, tmp_path / "out")
    with pytest.raises(UsageError, match="is of type uint4_super"):
        quantized(tmp_path / "out", tmp_path / "again", "int8")


def test_a_gguf_file_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("")
    with pytest.raises(UsageError, match="only a model's folder"):
        quantized(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize("change", ["missing", "untied"])
def test_tensors_that_are_not_the_models_are_refused(model: Path, tmp_path: Path, change: str) -> None:
    tensors = load_file(model / "model.safetensors")
    if change == "missing":
        del tensors["model.norm.weight"]
    else:
        tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(
        WeightsError, match="model.norm.weight" if change == "missing" else "differs from the embedding"
    ):
        quantized(model, tmp_path / "out")
