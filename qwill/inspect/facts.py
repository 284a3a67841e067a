"""What a model's numbers mean, in one phrase each. Words and numbers only; knows nothing of how they are laid out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from qwill.config import ModelConfig, RopeScaling
from qwill.inspect.structure import Structure

__all__ = ["Fact", "facts"]


@dataclass(frozen=True)
class Fact:
    """One number of the configuration: what it is called, its value, and what it means."""

    label: str
    value: str
    meaning: str


def facts(structure: Structure) -> list[Fact]:
    """The configuration explained; empty for a model without one."""
    config = structure.config
    if config is None:
        return []
    return [
        Fact("architecture", config.architecture, _family(config)),
        Fact("layers", str(config.num_layers), "blocks of attention and MLP, one after another"),
        Fact("hidden_size C", str(config.hidden_size), "numbers that stand for one token between layers"),
        *_attention_facts(config),
        Fact("intermediate_size F", str(config.intermediate_size), f"width of the MLP, {_times(config)} × hidden_size"),
        Fact("vocab_size V", f"{config.vocab_size:,}", _vocabulary(structure, config)),
        *_position_facts(config),
        Fact("rms_norm_eps", f"{config.rms_norm_eps:g}", "keeps the norms from dividing by zero"),
        Fact("tied", _yes(config.tie_word_embeddings), _tied(config)),
        Fact("QK-norm", _yes(config.qk_norm), _qk_norm(config)),
        Fact("biases", _biases(config), "constants added after a matrix product"),
    ]


def _family(config: ModelConfig) -> str:
    norm = " with QK-norm" if config.qk_norm else ""
    kind = "multi-head" if config.heads_per_kv == 1 else "grouped-query"
    return f"decoder-only transformer: {kind} attention{norm}, SwiGLU, RMSNorm"


def _attention_facts(config: ModelConfig) -> Iterator[Fact]:
    width = config.num_heads * config.head_dim
    same = width == config.hidden_size
    product = f"{config.num_heads} × {config.head_dim} = {width}"
    head_dim = f"size of one query, key or value; {product}, " + (
        "the hidden_size" if same else f"not the hidden_size {config.hidden_size}: q_proj and o_proj are not square"
    )
    shared = "each query head has its own key and value"
    if config.heads_per_kv > 1:
        shared = f"query heads that share one key and value: the cache is {config.heads_per_kv} × smaller"
    yield Fact("heads Hq", str(config.num_heads), "queries of one token in one layer")
    yield Fact("kv heads Hkv", str(config.num_kv_heads), "keys and values of one token in one layer; these are cached")
    yield Fact("heads per kv head", str(config.heads_per_kv), shared)
    yield Fact("head_dim D", str(config.head_dim), head_dim)


def _times(config: ModelConfig) -> str:
    return f"{config.intermediate_size / config.hidden_size:.2g}"


def _vocabulary(structure: Structure, config: ModelConfig) -> str:
    known = structure.tokenizer_size
    text = "tokens the embedding has a row for"
    if known is None or known == config.vocab_size:
        return text
    if known > config.vocab_size:
        return f"{text}; the tokenizer has more, {known:,}: they do not fit together"
    return f"{text}; the tokenizer uses {known:,}, the other {config.vocab_size - known:,} are padding"


def _position_facts(config: ModelConfig) -> Iterator[Fact]:
    slowest = 2 * math.pi * config.rope_theta ** (1 - 2 / config.head_dim)
    yield Fact("context", f"{config.max_position_embeddings:,}", "most tokens that prompt and answer may have together")
    turns = (
        f"base of the rotary positions: the slowest of {config.head_dim // 2} pairs turns once in {slowest:,.0f} tokens"
    )
    turns += " (before scaling)" if config.rope_scaling else ""
    yield Fact("rope_theta", f"{config.rope_theta:,.0f}", turns)
    yield Fact("rope scaling", *_scaling(config.rope_scaling))


def _scaling(scaling: RopeScaling | None) -> tuple[str, str]:
    if scaling is None:
        return "none", "positions are used as they are"
    trained = f"trained with {scaling.original_max_position_embeddings:,} positions"
    how = {
        "linear": "all rotations are slowed alike",
        "yarn": "slow rotations are slowed, fast ones kept (YaRN)",
        "llama3": "slow rotations are slowed, fast ones kept (Llama 3)",
    }[scaling.kind]
    return f"{scaling.kind} × {scaling.factor:g}", f"{trained}; {how}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _tied(config: ModelConfig) -> str:
    if config.tie_word_embeddings:
        return "the head uses the embedding's matrix again, so it costs nothing"
    return "the head has a matrix of its own"


def _qk_norm(config: ModelConfig) -> str:
    if config.qk_norm:
        return "every query and key is normed before the rotation"
    return "queries and keys are used as they come"


def _biases(config: ModelConfig) -> str:
    flags = {"q k v": config.qkv_bias, "o": config.output_bias, "mlp": config.mlp_bias}
    return ", ".join(name for name, there in flags.items() if there) or "none"
