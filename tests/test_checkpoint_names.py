"""GGUF's names against the `gguf` package's own table."""

from __future__ import annotations

import gguf
import pytest

from qwill.checkpoint_names import gguf_to_hf_name


@pytest.mark.parametrize("architecture", [gguf.MODEL_ARCH.QWEN3, gguf.MODEL_ARCH.QWEN2, gguf.MODEL_ARCH.LLAMA])
def test_names_agree_with_the_gguf_package(architecture: gguf.MODEL_ARCH) -> None:
    table = gguf.get_tensor_name_map(architecture, 30)
    hf_names = ["model.embed_tokens", "model.norm", "lm_head"]
    parts = ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    parts += [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    if architecture == gguf.MODEL_ARCH.QWEN3:
        parts += ["self_attn.q_norm", "self_attn.k_norm"]
    for name in [*hf_names, *(f"model.layers.{layer}.{part}" for layer in (0, 3, 29) for part in parts)]:
        theirs = table.get_name(f"{name}.weight", try_suffixes=(".weight",))
        assert theirs is not None, name
        assert gguf_to_hf_name(theirs) == f"{name}.weight"


@pytest.mark.parametrize(
    "name", ["", "blk.0", "blk.x.attn_q.weight", "blk.0.attn_q.scale", "blk.0.ffn_gate_exps.weight",
             "rope_freqs.weight", "blk.999999999999.attn_q.weight", "token_embd.weight.weight"],
)  # fmt: skip
def test_unknown_names_are_none(name: str) -> None:
    assert gguf_to_hf_name(name) is None
