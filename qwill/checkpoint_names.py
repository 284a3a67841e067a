"""The names and shapes that a checkpoint of a given `ModelConfig` must have.

Torch-free: `inspect` and `verify` work from headers alone. Names are those of Hugging Face checkpoints;
GGUF's are translated to them. Knows nothing of how the model fuses or stores its parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from qwill.config import ModelConfig
from qwill.formats import Checkpoint, TensorInfo

__all__ = [
    "EMBEDDING",
    "GGUF_ROTARY_PERMUTED",
    "LM_HEAD",
    "TensorMatch",
    "expected_tensors",
    "gguf_to_hf_name",
    "match_tensors",
]

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

GGUF_ROTARY_PERMUTED = frozenset({"llama"})
"""Architectures whose GGUF files store the rows of q and k in interleaved rotary order (not the Qwen ones)."""

_GGUF_GLOBAL = {"token_embd.weight": EMBEDDING, "output.weight": LM_HEAD, "output_norm.weight": "model.norm.weight"}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_to_hf_name(name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a name that is not known.

    Source: the tensor name table of the GGUF specification.
    """
    if name in _GGUF_GLOBAL:
        return _GGUF_GLOBAL[name]
    match = re.fullmatch(r"blk\.(\d{1,5})\.([a-z_]+)\.(weight|bias)", name)
    if not match or match[2] not in _GGUF_LAYER:
        return None
    return f"model.layers.{match[1]}.{_GGUF_LAYER[match[2]]}.{match[3]}"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor the model needs; weights are (out_features, in_features).

    A tied model's `lm_head.weight` is not among them: some checkpoints carry the copy, others do not.
    """
    expected: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            expected[f"model.layers.{layer}.{name}"] = shape
    expected["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        expected[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return expected


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    return shapes


@dataclass(frozen=True)
class TensorMatch:
    """How a checkpoint's tensors compare with those that a configuration asks for.

    `found` maps Hugging Face names to the tensors the model uses, a tied model's redundant lm_head among them;
    `wrong_shape` holds those of them that have another shape, with the shape asked for.
    """

    found: dict[str, TensorInfo] = field(default_factory=dict)
    missing: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unused: list[TensorInfo] = field(default_factory=list)
    wrong_shape: list[tuple[TensorInfo, tuple[int, ...]]] = field(default_factory=list)


def match_tensors(checkpoint: Checkpoint, config: ModelConfig) -> TensorMatch:
    """Compare names and shapes; nothing is read."""
    expected = expected_tensors(config)
    accepted = {**expected, LM_HEAD: expected[EMBEDDING]} if config.tie_word_embeddings else expected
    match = TensorMatch()
    for info in checkpoint.tensors.values():
        name = (gguf_to_hf_name(info.name) if checkpoint.format == "gguf" else None) or info.name
        if name in accepted:
            match.found[name] = info
            if info.shape != accepted[name]:
                match.wrong_shape.append((info, accepted[name]))
        elif not info.name.endswith("rotary_emb.inv_freq"):  # old checkpoints carry it; it follows from the config
            match.unused.append(info)
    match.missing.update({name: shape for name, shape in expected.items() if name not in match.found})
    return match
