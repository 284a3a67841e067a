"""Loading: fusing, tying, dtypes, and the accounting of tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwill.checkpoint_names import expected_tensors
from qwill.config import load_config
from qwill.errors import WeightsError
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.weights import load_model, parameter_targets

CPU = torch.device("cpu")


def load(path: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    with open_checkpoint(path) as checkpoint:
        return load_model(checkpoint, load_config(path), dtype=dtype, device=CPU)


@pytest.fixture
def copy_of(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[[str], tuple[Path, dict[str, Tensor]]]:
    def make(kind: str) -> tuple[Path, dict[str, Tensor]]:
        folder = tmp_path / kind
        shutil.copytree(tiny_checkpoint(kind), folder)
        return folder, load_file(folder / "model.safetensors")

    return make


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen3-biases", "qwen2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_tensor_lands_in_its_rows(
    kind: str, dtype: torch.dtype, copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]]
) -> None:
    folder, tensors = copy_of(kind)
    parameters = dict(load(folder, dtype).named_parameters())
    covered = dict.fromkeys(parameters, 0)
    for name, target in parameter_targets(load_config(folder)).items():
        rows = parameters[target.parameter][target.start : target.start + target.rows]
        assert torch.equal(rows, tensors[name].to(dtype)), name
        covered[target.parameter] += target.rows
    covered.pop("lm_head.weight", None) if "lm_head.weight" not in tensors else None
    assert {name: len(parameters[name]) for name in covered} == covered


def test_what_is_missing_unused_or_misshapen_is_listed_in_one_error(
    copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]],
) -> None:
    folder, tensors = copy_of("qwen3")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.9.extra.weight"] = torch.zeros(3)
    tensors["model.norm.weight"] = torch.zeros(7)
    rewrite(folder, tensors)
    with pytest.raises(WeightsError) as caught:
        load(folder)
    text = str(caught.value)
    assert "missing (1): model.layers.1.mlp.up_proj.weight" in text
    assert "unused (1): model.layers.9.extra.weight" in text
    assert "wrong shape (1): model.norm.weight: want (48,), got (7,)" in text


def test_a_long_list_of_problems_is_cut(copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]]) -> None:
    folder, tensors = copy_of("qwen3")
    rewrite(folder, {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(WeightsError, match=r"missing \(34\): .* and 24 more"):
        load(folder)


def test_a_tied_head_that_is_there_too_must_be_the_embedding(
    copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]],
) -> None:
    folder, tensors = copy_of("qwen3")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    rewrite(folder, tensors)
    model = load(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tensors["lm_head.weight"][3, 3] += 1
    rewrite(folder, tensors)
    with pytest.raises(WeightsError, match="differs from the embedding"):
        load(folder)


def test_an_untied_head_is_not_the_embedding(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3-untied"))
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_an_untied_model_without_its_head_is_refused(copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]]) -> None:
    folder, tensors = copy_of("qwen3-untied")
    del tensors["lm_head.weight"]
    rewrite(folder, tensors)
    with pytest.raises(WeightsError, match=r"missing \(1\): lm_head\.weight"):
        load(folder)


def test_shards_load_like_one_file(copy_of: Callable[[str], tuple[Path, dict[str, Tensor]]]) -> None:
    folder, tensors = copy_of("qwen3")
    want = load(folder).state_dict()
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    got = load(folder).state_dict()
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_a_repository_that_only_has_pickles_loads_nothing(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Neither the pickle nor the module that config.json names is touched."""
    config = json.loads((tiny_checkpoint("qwen3") / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "canary.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "canary.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')")
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="safetensors"):
        load(tmp_path)
    assert not (tmp_path / "touched").exists()


def write_gguf(path: Path, folder: Path, *, architecture: str) -> None:
    """The checkpoint as GGUF in F32, written with the `gguf` package; llama's q and k rows in its rotary order."""
    config = load_config(folder)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_layers)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        projection = name.split(".")[-2]
        if architecture == "llama" and projection in heads:
            halves = values.reshape(heads[projection], 2, config.head_dim // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen2", "llama"])
def test_gguf_and_safetensors_give_the_same_weights(
    kind: str, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(kind)
    write_gguf(tmp_path / "m.gguf", folder, architecture=kind.split("-")[0])
    want, got = load(folder).state_dict(), load(tmp_path / "m.gguf").state_dict()
    assert want.keys() == got.keys()
    for name in want:
        assert torch.equal(want[name], got[name]), name


def test_targets_name_every_tensor_of_the_checkpoint(tiny_checkpoint: Callable[..., Path]) -> None:
    config = load_config(tiny_checkpoint("qwen2"))
    assert parameter_targets(config).keys() == expected_tensors(config).keys()
