"""Rotary angles and the modules that hold weights."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qwill.config import ModelConfig, RopeScaling
from qwill.models.layers import RotaryAngles, inverse_frequencies

FACTORS = [1.0, 2.0, 4.0, 32.0]


def config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "architecture": "qwen3", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_layers": 1,
        "num_heads": 2, "num_kv_heads": 1, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "rope_scaling": None, "max_position_embeddings": 40960, "tie_word_embeddings": True, "qkv_bias": False,
        "output_bias": False, "mlp_bias": False, "qk_norm": True, "dtype": "float32", "bos_token_id": None,
        "eos_token_ids": (),
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


def test_angles_stay_exact_when_the_model_is_cast_to_bfloat16() -> None:
    rotary = RotaryAngles(config())
    positions = torch.arange(40960)
    want = rotary(positions, torch.float32)
    got = rotary.to(torch.bfloat16)(positions, torch.float32)
    assert torch.equal(want[0], got[0])
    assert torch.equal(want[1], got[1])
    exact = positions.double()[:, None] / 1e6 ** (torch.arange(0, 128, 2).double() / 128)
    torch.testing.assert_close(got[0][:, :64].double(), exact.cos(), atol=4e-3, rtol=0)  # fp32 angles up to 40959 rad


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_yarn_frequencies_equal_transformers(factor: float, head_dim: int) -> None:
    parameters = {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": factor, "original_max_position_embeddings": 32768,
    }  # fmt: skip
    theirs, amplitude = ROPE_INIT_FUNCTIONS["yarn"](
        Qwen3Config(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=131072)
    )
    scaling = RopeScaling("yarn", factor, 32768, attention_factor=amplitude)
    torch.testing.assert_close(inverse_frequencies(head_dim, 1e6, scaling), theirs, atol=0, rtol=1e-5)


@pytest.mark.parametrize("factor", FACTORS)
def test_llama3_frequencies_equal_transformers(factor: float) -> None:
    parameters = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(head_dim=128, rope_parameters=parameters))
    ours = inverse_frequencies(128, 5e5, RopeScaling("llama3", factor, 8192))
    torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-5)


def test_linear_scaling_divides_the_frequencies() -> None:
    plain = inverse_frequencies(64, 1e4, None)
    assert torch.equal(inverse_frequencies(64, 1e4, RopeScaling("linear", 4.0, 2048)), plain / 4)
