"""The unquantized file computes what the quantized one does, with its channels in another order."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from qwill.batch import Batch, NewTokens
from qwill.config import load_config
from qwill.formats import open_checkpoint
from qwill.weights import load_model
from scripts.whole_gguf import main, write_whole

SIZES = {"hidden": 64, "inner": 96, "heads": 6, "kv_heads": 2, "head_dim": 16, "vocabulary": 40}


def shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of two layers."""
    hidden, inner, queries, keys = 64, 96, 96, 32
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (40, hidden), "output_norm.weight": (hidden,)}
    if architecture == "qwen2":
        found["output.weight"] = (40, hidden)
    for layer in range(2):
        rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
        block: dict[str, tuple[int, ...]] = {f"{name}.weight": (size, hidden) for name, size in rows.items()}
        if architecture == "qwen2":
            block |= {f"{name}.bias": (size,) for name, size in rows.items()}
        block |= {"attn_output.weight": (hidden, queries), "attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
        block |= {"ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden)}
        block["ffn_down.weight"] = (hidden, inner)
        found |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return found


@pytest.fixture(params=["qwen2", "llama"])
def quantized(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model in Q4_1, with biases and a head of its own or without."""
    write_random(tmp_path / "quantized.gguf", request.param, shapes(request.param))
    return tmp_path / "quantized.gguf"


def write_random(path: Path, architecture: str, tensors: dict[str, tuple[int, ...]]) -> None:
    """Random tensors in Q4_1, those of one dimension in F32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_feed_forward_length(SIZES["inner"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_key_length(SIZES["head_dim"])
    writer.add_value_length(SIZES["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list([f"token{number}" for number in range(SIZES["vocabulary"])])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    random = np.random.default_rng(0)
    for name, shape in tensors.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path: Path) -> torch.Tensor:
    """Of eight tokens, in fp32."""
    with open_checkpoint(path) as checkpoint:
        model = load_model(checkpoint, load_config(path), dtype=torch.float32, device=torch.device("cpu"))
    batch = Batch.build([NewTokens(0, 8, num_logits=8)], None, torch.device("cpu"))
    return model(torch.arange(3, 11), batch)


def test_it_computes_the_same_with_the_channels_in_another_order(quantized: Path, tmp_path: Path) -> None:
    assert main([str(quantized), str(tmp_path / "whole.gguf")]) == 0
    torch.testing.assert_close(logits(tmp_path / "whole.gguf"), logits(quantized), rtol=1e-4, atol=1e-5)


def test_every_tensor_keeps_its_name_and_values_in_fp32_but_hardly_one_its_place(
    quantized: Path, tmp_path: Path
) -> None:
    write_whole(quantized, tmp_path / "whole.gguf")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(quantized).tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "whole.gguf").tensors}
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        values = gguf.quants.dequantize(before[name].data, before[name].tensor_type)
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        np.testing.assert_array_equal(np.sort(tensor.data, axis=None), np.sort(values, axis=None))
        moved = np.mean(tensor.data != values)
        assert moved == 0 if name.endswith(("attn_q.bias", "attn_k.bias")) else moved > 0.5


def test_metadata_goes_along_without_what_was_about_the_old_file(quantized: Path, tmp_path: Path) -> None:
    write_whole(quantized, tmp_path / "whole.gguf")
    before, after = gguf.GGUFReader(quantized).fields, gguf.GGUFReader(tmp_path / "whole.gguf").fields
    assert set(before) - set(after) == {"general.file_type"}
    assert after["tokenizer.ggml.tokens"].contents() == before["tokenizer.ggml.tokens"].contents()


def test_a_tensor_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    write_random(tmp_path / "moe.gguf", "qwen2", {"blk.0.ffn_gate_inp.weight": (8, 64)})
    with pytest.raises(ValueError, match="ffn_gate_inp"):
        write_whole(tmp_path / "moe.gguf", tmp_path / "whole.gguf")
    assert not (tmp_path / "whole.gguf").exists()


def test_wrong_usage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "IN.gguf OUT.gguf" in capsys.readouterr().err
