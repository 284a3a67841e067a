"""Statistics of weights against numpy in float64, computed from the checkpoint's own files."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qwill import LLM
from qwill.errors import SettingError, UsageError, WeightsError
from qwill.quantization import FORMATS
from qwill.views import weights as module
from qwill.views.weights import weights

SMALL: dict[str, Any] = {"max_model_len": 128, "threads": 1}


def values_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen2", "llama"])
def test_every_tensor_of_the_checkpoint_has_the_statistics_that_numpy_finds(
    kind: str, chat_folder: Callable[[str], Path]
) -> None:
    folder = chat_folder(kind)
    with LLM(folder, dtype="float32", **SMALL) as llm:
        data = weights(llm).data()
    values = values_of(folder)
    assert [one["name"] for one in data["tensors"]] == sorted(values, key=[t["name"] for t in data["tensors"]].index)
    for one in data["tensors"]:
        w = values[one["name"]]
        assert one["shape"] == list(w.shape)
        assert (one["stored"], one["format"], one["sampled"]) == ("F32", "float32", 1.0)
        found = [one[name] for name in ("mean", "std", "min", "max")]
        np.testing.assert_allclose(found, [w.mean(), w.std(), w.min(), w.max()], rtol=1e-9, atol=1e-12)
        counts, edges = np.histogram(w, 64)
        assert one["histogram"]["counts"] == counts.tolist()
        np.testing.assert_allclose(one["histogram"]["edges"], edges, rtol=1e-12, atol=1e-12)
        assert one["error"] == {"relative_rms": 0.0, "max": 0.0}


def test_a_tied_head_is_there_once_and_bytes_add_up(chat_folder: Callable[[str], Path]) -> None:
    with LLM(chat_folder("qwen3"), dtype="float32", **SMALL) as tied:
        names = [tensor.name for tensor in weights(tied).tensors]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    with LLM(chat_folder("qwen3-untied"), dtype="float32", **SMALL) as untied:
        found = weights(untied)
        table = next(one for one in found.tensors if one.name == "model.embed_tokens.weight")
        assert sum(one.nbytes for one in found.tensors) == untied.decode_bytes + table.nbytes


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_the_error_of_quantizing_is_what_the_format_allows(quant: str, chat_folder: Callable[[str], Path]) -> None:
    folder = chat_folder("qwen3")
    with LLM(folder, quant=quant, **SMALL) as llm:
        data = {one["name"]: one for one in weights(llm).data()["tensors"]}
        model = llm.service.between_steps(lambda engine: engine.runner.model)
    values = values_of(folder)
    for name, one in data.items():
        w = values[name]
        if w.ndim == 1:
            assert one["error"] == {"relative_rms": 0.0, "max": 0.0}
            continue
        bits = FORMATS[one["format"]].bits
        assert bits == 8 or (quant == "int4" and ".v_proj." not in name)
        assert one["bits_per_weight"] == 8 * one["nbytes"] / w.size
        # Half a step, and what rounding the scale to fp16 adds to 127 steps. A step of int8 is a 127th of a group's
        # largest value, of int4 at most a 15th of its span.
        largest = np.abs(w).max()
        bound = largest / 127 * (0.5 + 127 * 2**-11) if bits == 8 else 2 * largest / 15
        assert 0 < one["error"]["max"] <= bound
        assert 0 < one["error"]["relative_rms"] < (0.01 if bits == 8 else 0.15)
    # One of them by hand: the rows of k_proj in the fused matrix.
    held = model.model.layers[1].self_attn.qkv_proj.weight.dequantize().double().numpy()
    w = values["model.layers.1.self_attn.k_proj.weight"]
    start = len(values["model.layers.1.self_attn.q_proj.weight"])
    difference = held[start : start + len(w)] - w
    found = data["model.layers.1.self_attn.k_proj.weight"]["error"]
    expected = [np.linalg.norm(difference) / np.linalg.norm(w), np.abs(difference).max()]
    np.testing.assert_allclose([found["relative_rms"], found["max"]], expected, rtol=1e-9)


@pytest.mark.weights
def test_a_gguf_file_is_in_memory_to_the_bit(smollm2_gguf: Path) -> None:
    """Its q and k are stored in another order of rows, and are compared with the right ones."""
    with LLM(smollm2_gguf, **SMALL) as llm:
        found = weights(llm)
    assert {tensor.stored for tensor in found.tensors} >= {"Q4_1", "F32"}
    assert [tensor.name for tensor in found.tensors if tensor.relative_rms or tensor.max_error] == []
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}
    for name, theirs in (("self_attn.v_proj", "attn_v"), ("self_attn.k_proj", "attn_k"), ("mlp.down_proj", "ffn_down")):
        one = found.tensor(f"model.layers.7.{name}.weight").statistics
        stored = reader[f"blk.7.{theirs}.weight"]
        w = gguf.dequantize(stored.data, stored.tensor_type).astype(np.float64)
        assert one.shape == w.shape
        if one.sampled == 1.0:
            np.testing.assert_allclose([one.mean, one.std], [w.mean(), w.std()], rtol=1e-6, atol=1e-9)
        else:
            assert one.std == pytest.approx(w.std(), rel=0.05)


def test_of_a_large_tensor_evenly_spaced_rows_are_looked_at(
    chat_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE", 48 * 100)
    folder = chat_folder("qwen3")
    with LLM(folder, quant="int8", **SMALL) as llm:
        one = weights(llm).tensor("model.embed_tokens.weight").statistics
    w = values_of(folder)["model.embed_tokens.weight"]
    rows = round(one.sampled * len(w))
    assert sum(one.counts) == rows * w.shape[1]
    assert 48 < rows <= 100
    assert 0 < one.relative_rms < 0.01
    starts = [start for start, _ in module._strips(len(w), 48, 16)]
    assert starts[0] == 0
    assert starts[-1] >= len(w) - 32
    gaps = np.diff(starts)
    assert max(gaps) - min(gaps) <= 16
    picked = np.concatenate([w[start:stop] for start, stop in module._strips(len(w), 48, 16)])
    assert one.mean == pytest.approx(picked.mean(), abs=1e-12)


@pytest.mark.parametrize("shape", [(1, 5000), (7, 3), (151936, 896), (4864, 896), (896, 4864), (10, 1 << 21)])
@pytest.mark.parametrize("unit", [16, 64])
def test_strips_lie_in_the_tensor_and_do_not_overlap(shape: tuple[int, int], unit: int) -> None:
    strips = list(module._strips(*shape, unit))
    assert strips[0][0] == 0
    assert all(0 <= start < stop <= shape[0] for start, stop in strips)
    assert all(start % unit == 0 for start, _ in strips)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(strips))
    most = max(module.SAMPLE, unit * shape[1])
    assert sum(stop - start for start, stop in strips) * shape[1] <= most


def test_it_can_be_drawn_and_saved(chat_folder: Callable[[str], Path], tmp_path: Path) -> None:
    with LLM(chat_folder("qwen3"), quant="int4", **SMALL) as llm:
        view = weights(llm)
    view.save(tmp_path / "weights.png")
    view.save(tmp_path / "weights.json")
    data = json.loads((tmp_path / "weights.json").read_text())
    assert data == view.data()
    assert all(math.isfinite(one["std"]) for one in data["tensors"])
    page = view._repr_html_()
    assert "uint4_super" in page
    one = view.tensor("model.layers.0.mlp.down_proj.weight")
    one.save(tmp_path / "one.svg")
    assert "48 × 80" in one.caption
    assert one.data() == next(each for each in data["tensors"] if each["name"] == one.title)


def test_what_is_not_there_is_told(chat_folder: Callable[[str], Path], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "changing"
    shutil.copytree(chat_folder("qwen3"), folder)
    llm = LLM(folder, dtype="float32", **SMALL)
    with pytest.raises(SettingError, match="no tensor 'wte'"):
        weights(llm).tensor("wte")
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="no longer"):
        weights(llm)
    llm.close()
    with pytest.raises(UsageError, match="closed"):
        weights(llm)
