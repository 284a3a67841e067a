"""Write a small dense Qwen3 of `transformers`, its tokenizer and its chat template as one GGUF file.

The matrices become Q8_0 (one byte a value and an fp16 scale for 32 of them), the norms stay fp32. Writes with the
`gguf` package; knows nothing of our own readers, so that reading the file tests them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

__all__ = ["About", "write_gguf"]

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Name inside a layer: in a Hugging Face checkpoint -> in GGUF."""


@dataclass(frozen=True)
class About:
    """What a file says of itself."""

    name: str
    description: str
    chat_template: str
    special_tokens: dict[str, bool]
    end_of_turn: str
    end_of_text: str


def write_gguf(path: Path, model: Any, tokenizer: Tokenizer, about: About) -> None:
    """Write `path`; it appears when it is complete. The model's head must be its embedding table."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    _write_config(writer, model.config, about)
    _write_tokenizer(writer, tokenizer, about)
    for name, values in model.state_dict().items():
        if name != "lm_head.weight":  # tied: the embedding table stands for it
            _write_tensor(writer, _gguf_name(name), values.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _write_config(writer: gguf.GGUFWriter, config: Any, about: About) -> None:
    writer.add_name(about.name)
    writer.add_description(about.description)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, about: About) -> None:
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    control, user_defined = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
    kinds = {text: control if special else user_defined for text, special in about.special_tokens.items()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(ids[about.end_of_turn])
    writer.add_bos_token_id(ids[about.end_of_text])  # as Qwen3's own files say; nothing puts it before a prompt
    writer.add_pad_token_id(ids[about.end_of_text])
    writer.add_add_bos_token(False)
    writer.add_chat_template(about.chat_template)


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, inside = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[inside]}.weight"


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: Any) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
