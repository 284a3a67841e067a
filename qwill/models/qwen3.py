"""The dense family: Qwen3, and by configuration Qwen2/2.5 and Llama. Read it top to bottom; it is the whole model.

    Qwen3    no biases, RMSNorm on each head's q and k        arXiv:2505.09388
    Qwen2    biases on q, k, v; no q/k norm                   arXiv:2407.10671, arXiv:2412.15115
    Llama    no biases, no q/k norm                           arXiv:2407.21783

One letter per dimension: T new tokens of the step, C hidden_size, Hq query heads, Hkv key-value heads, D head_dim,
F intermediate_size, V vocab_size, R rows whose logits are wanted. Tokens of all requests stand end to end in T;
`batch` says which belong together. Names are the checkpoint's, but q, k, v and gate, up are stored as one matrix each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qwill import ops
from qwill.batch import Batch
from qwill.config import ModelConfig
from qwill.models.layers import Embedding, Linear, RMSNorm, RotaryAngles

__all__ = ["FUSED", "Attention", "CausalLM", "DecoderLayer", "MLP", "Model"]

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Our matrix -> the checkpoint's matrices whose rows it holds, in this order."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and, in Qwen3, a norm on each query and key head."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        Hq, Hkv, D = config.num_heads, config.num_kv_heads, config.head_dim
        self.layer, self.heads, self.head_dim = layer, (Hq, Hkv, Hkv), D
        self.qkv_proj = Linear(config.hidden_size, (Hq + 2 * Hkv) * D, bias=config.qkv_bias)
        self.q_norm = RMSNorm(D, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(D, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.o_proj = Linear(Hq * D, config.hidden_size, bias=config.output_bias)

    def forward(self, x: Tensor, residual: Tensor, rotary: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """x (T, C), rotary cos and sin (T, D) -> residual (T, C) plus what was attended to."""
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # (T, Hq + 2*Hkv, D)
        q, k, v = qkv.split(self.heads, dim=1)  # (T, Hq, D) (T, Hkv, D) (T, Hkv, D)
        q = ops.rope(self.q_norm(q), *rotary)  # (T, Hq, D)
        k = ops.rope(self.k_norm(k), *rotary)  # (T, Hkv, D)
        out = ops.attention(q, k, v, batch, self.layer)  # (T, Hq, D)
        return self.o_proj(out.flatten(1), residual)  # (T, C)


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """x (T, C) -> residual (T, C) plus the feed-forward of x."""
        gate_up = self.gate_up_proj(x)  # (T, 2*F)
        hidden = ops.silu_and_mul(gate_up)  # (T, F)
        return self.down_proj(hidden, residual)  # (T, C)


class DecoderLayer(nn.Module):
    """Norm, attend, add; norm, think, add."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """x (T, C) -> (T, C)."""
        x = self.self_attn(self.input_layernorm(x), x, rotary, batch)  # (T, C)
        return self.mlp(self.post_attention_layernorm(x), x)  # (T, C)


class Model(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.rotary = RotaryAngles(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: Tensor, batch: Batch) -> Tensor:
        """token_ids (T,) int64 -> hidden states (T, C), before the final norm."""
        x = self.embed_tokens(token_ids)  # (T, C)
        rotary = self.rotary(batch.positions, x.dtype)  # (T, D) (T, D)
        for layer in self.layers:
            x = layer(x, rotary, batch)  # (T, C)
        return x  # (T, C)


class CausalLM(nn.Module):
    """The language model: hidden states to logits, with the embedding's matrix where the two are tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, batch: Batch) -> Tensor:
        """token_ids (T,) int64 -> logits (R, V) of the rows that the batch asks for, in the model's dtype."""
        x = self.model(token_ids, batch)  # (T, C)
        wanted = self.model.norm(ops.rows(x, batch.logits_rows))  # (R, C)
        return self.lm_head(wanted)  # (R, V)
