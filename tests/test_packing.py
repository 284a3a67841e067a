"""A checkpoint's matrices become packed parts: the same values, whatever pieces they are converted in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwill import packing
from qwill.checkpoint_values import values_of_rows
from qwill.config import load_config
from qwill.formats import open_checkpoint
from qwill.packing import Matrix, Packing, pack_tensor, packed_nbytes
from qwill.quantization import PackedWeight
from qwill.weights import load_model

NAME = "model.layers.0.mlp.gate_proj.weight"


@pytest.mark.parametrize("piece", [1, 1000, 1 << 22])
def test_floats_keep_their_values_in_pieces_of_any_size(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(packing, "PIECE", piece)
    with open_checkpoint(tiny_checkpoint("qwen3")) as checkpoint:
        info = checkpoint.tensors[NAME]
        told: list[int] = []
        part = pack_tensor(Matrix(checkpoint, info), Packing(torch.float32), told.append)
        assert sum(told) == info.nbytes
        want = values_of_rows(checkpoint, info, 0, info.shape[0])
        assert torch.equal(PackedWeight(info.shape[1], (part,)).dequantize(), want)


@pytest.mark.parametrize(("quant", "worst"), [("int8", 0.006), ("int4", 0.09)])
def test_quantized_values_are_near_and_take_the_bytes_that_were_told(
    tiny_checkpoint: Callable[..., Path], quant: str, worst: float
) -> None:
    with open_checkpoint(tiny_checkpoint("qwen3")) as checkpoint:
        info = checkpoint.tensors[NAME]
        how = Packing(torch.float32, quant)
        part = pack_tensor(Matrix(checkpoint, info), how)
        assert part.data.nbytes == packed_nbytes(info, how, sensitive=False)
        want = values_of_rows(checkpoint, info, 0, info.shape[0])
        error = PackedWeight(info.shape[1], (part,)).dequantize() - want
        assert error.norm() / want.norm() < worst
        kept = pack_tensor(Matrix(checkpoint, info, sensitive=True), how)
        assert kept.format.name == "int8"


@pytest.mark.weights
@pytest.mark.parametrize("model", ["qwen_coder_gguf", "smollm2_gguf"])
def test_a_quantized_gguf_file_keeps_every_value_to_the_bit(model: str, request: pytest.FixtureRequest) -> None:
    """Repacked without loss, rotary rows put back; against the file's dequantized values."""
    path: Path = request.getfixturevalue(model)
    config = load_config(path)
    cpu = torch.device("cpu")
    with open_checkpoint(path) as checkpoint:
        packed = load_model(
            checkpoint, config, dtype=torch.float32, device=cpu, packing=Packing(torch.bfloat16, "int8")
        )
    with open_checkpoint(path) as checkpoint:
        plain = load_model(checkpoint, config, dtype=torch.float32, device=cpu)
    for layer in (0, config.num_layers - 1):
        for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            weight, want = (model.model.layers[layer].get_submodule(name).weight for model in (packed, plain))
            assert torch.equal(weight.dequantize(), want), (layer, name)
