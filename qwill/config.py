"""ModelConfig: every number that decides the model's shape, from config.json or from GGUF metadata.

Torch-free. Reads the spellings of transformers v4 and v5; a file that contradicts itself is an error, and what
qwill does not implement is refused by name, because a model run with half its configuration gives plausible nonsense.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwill.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from qwill.formats import TensorInfo, open_checkpoint
from qwill.formats.folder import allowed_file
from qwill.formats.packed import QUANTS, quantization_config

__all__ = [
    "ModelConfig",
    "RopeScaling",
    "config_from_gguf",
    "config_from_json",
    "load_config",
    "load_generation_config",
]

ARCHITECTURES = ("qwen3", "qwen2", "llama")
MAX_JSON_BYTES = 1 << 20


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    kind "linear": all divided by `factor`. "yarn": arXiv:2309.00071. "llama3": the Llama 3.1 report, arXiv:2407.21783.
    """

    kind: str
    factor: float
    original_max_position_embeddings: int
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one model, with the field's names. Sizes in elements; positions in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    dtype: str
    """Number format of the checkpoint: float32, bfloat16 or float16; bfloat16 for quantized files."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_sizes(self)

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one key-value head (grouped-query attention, arXiv:2305.13245)."""
        return self.num_heads // self.num_kv_heads


def _check_sizes(config: ModelConfig) -> None:
    limits = {
        "vocab_size": 2**24,
        "hidden_size": 2**17,
        "intermediate_size": 2**20,
        "num_layers": 1024,
        "num_heads": 4096,
        "num_kv_heads": 4096,
        "head_dim": 4096,
        "max_position_embeddings": 2**28,
    }
    for name, most in limits.items():
        value = getattr(config, name)
        if not 1 <= value <= most:
            raise ConfigError(f"{name} = {value} is outside 1 … {most}", hint="the configuration is damaged")
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(f"{config.num_heads} heads cannot be shared out to {config.num_kv_heads} key-value heads")
    if config.head_dim % 2:
        raise ConfigError(f"head_dim = {config.head_dim} is odd; rotary positions need pairs")
    for name, least in (("rms_norm_eps", 0.0), ("rope_theta", 1.0)):
        value = getattr(config, name)
        if not least < value < 1e15:
            raise ConfigError(f"{name} = {value} is not a number above {least:g} and below 1e15")


def load_config(path: Path) -> ModelConfig:
    """The configuration of a model folder (config.json) or of a .gguf file.

    Raises:
        ModelNotFoundError, ConfigError, UnsupportedModelError, FormatError.
    """
    if path.is_dir():
        return config_from_json(path)
    with open_checkpoint(path) as checkpoint:
        if checkpoint.format != "gguf":
            return config_from_json(path.parent)
        return config_from_gguf(checkpoint.metadata, checkpoint.tensors)


def load_generation_config(path: Path) -> dict[str, Any]:
    """The folder's generation_config.json, or {} where there is none (a .gguf file has none)."""
    file = path / "generation_config.json"
    return _read_json(file) if path.is_dir() and file.is_file() else {}


def _read_json(file: Path) -> dict[str, Any]:
    file = allowed_file(file.parent, file.name)
    if not file.is_file():
        raise ModelNotFoundError(f"there is no {file.name}", where=str(file.parent), hint="is this a model folder?")
    if file.stat().st_size > MAX_JSON_BYTES:
        raise ConfigError(f"{file.name} is larger than {MAX_JSON_BYTES} bytes", where=str(file))
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file.name} is not valid JSON: {error}", where=str(file)) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file.name} does not hold an object", where=str(file))
    return content


class _Fields:
    """Typed access to a mapping that may hold anything; errors name the key and the file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, key: str, kind: type, default: Any = ...) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is ...:
                raise ConfigError(f"{key} is missing", where=self.where)
            return default
        is_bool = isinstance(value, bool)
        if kind is float and isinstance(value, int) and not is_bool:
            value = float(value) if abs(value) < 2**63 else math.inf
        if not isinstance(value, kind) or (is_bool and kind is not bool):
            raise ConfigError(f"{key} = {value!r:.60} is not of type {kind.__name__}", where=self.where)
        return value

    def refuse(self, key: str, accepted: Iterable[Any]) -> None:
        value = self.values.get(key)
        if isinstance(value, list) or hasattr(value, "__array__"):
            raise ConfigError(f"{key} is a list, not one value", where=self.where)
        if value not in (None, *accepted):
            raise UnsupportedModelError(f"{key} = {value!r:.80} is not implemented", where=self.where)


def config_from_json(path: Path) -> ModelConfig:
    """Read `path`/config.json, in the spelling of transformers v4 or v5.

    Raises:
        ModelNotFoundError: no such file. ConfigError: wrong or contradictory. UnsupportedModelError: not implemented.
    """
    values = _read_json(path / "config.json")
    get = _Fields(values, str(path / "config.json"))
    architecture = get.get("model_type", str, "")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"model_type {architecture!r} is not implemented",
            where=get.where,
            hint="known: " + ", ".join(ARCHITECTURES),
        )
    _refuse_unimplemented(get)
    heads, hidden = get.get("num_attention_heads", int), get.get("hidden_size", int)
    max_positions = get.get("max_position_embeddings", int)
    theta, scaling = _rope_from_json(get, architecture, max_positions)
    bias = get.get("attention_bias", bool, False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=get.get("vocab_size", int),
        hidden_size=hidden,
        intermediate_size=get.get("intermediate_size", int),
        num_layers=get.get("num_hidden_layers", int),
        num_heads=heads,
        num_kv_heads=get.get("num_key_value_heads", int, heads),
        head_dim=get.get("head_dim", int, 128 if architecture == "qwen3" else hidden // max(heads, 1)),
        rms_norm_eps=get.get("rms_norm_eps", float),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=_stretched(max_positions, scaling),
        tie_word_embeddings=get.get("tie_word_embeddings", bool, False),
        qkv_bias=architecture == "qwen2" or bias,
        output_bias=architecture != "qwen2" and bias,
        mlp_bias=get.get("mlp_bias", bool, False),
        qk_norm=architecture == "qwen3",
        dtype=_dtype(get),
        bos_token_id=_first(get.values.get("bos_token_id"), get.where),
        eos_token_ids=token_ids(get.values.get("eos_token_id"), get.where),
    )


def _refuse_unimplemented(get: _Fields) -> None:
    get.refuse("hidden_act", ["silu"])
    get.refuse("quantization_config", [{}, *map(quantization_config, QUANTS)])
    get.refuse("use_sliding_window", [False])
    get.refuse("pretraining_tp", [1])
    get.refuse("partial_rotary_factor", [1, 1.0])
    other_layers = [kind for kind in get.get("layer_types", list, []) if kind != "full_attention"]
    if other_layers:
        raise UnsupportedModelError(f"layer_types {other_layers[0]!r:.60} is not implemented", where=get.where)


def _dtype(get: _Fields) -> str:
    """v4 writes torch_dtype, v5 dtype; both may be there."""
    names = {str(get.values[key]).removeprefix("torch.") for key in ("dtype", "torch_dtype") if get.values.get(key)}
    if len(names) > 1:
        raise ConfigError(f"dtype and torch_dtype disagree: {sorted(names)}", where=get.where)
    name = names.pop() if names else "float32"
    if name not in ("float32", "bfloat16", "float16"):
        raise UnsupportedModelError(f"dtype {name!r} is not implemented", where=get.where)
    return name


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """One token id, a list of them or None, as a tuple.

    Raises:
        ConfigError: for anything else.
    """
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ConfigError(f"{token_id!r:.60} is not a token id", where=where)
    return tuple(ids)


def _first(value: Any, where: str) -> int | None:
    ids = token_ids(value, where)
    return ids[0] if ids else None


def _stretched(max_positions: int, scaling: RopeScaling | None) -> int:
    """YaRN files often keep the trained max_position_embeddings; the stretched context is what can be used."""
    if scaling is None or scaling.kind != "yarn":
        return max_positions
    return max(max_positions, int(scaling.factor * scaling.original_max_position_embeddings))


def _rope_from_json(get: _Fields, architecture: str, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Theta and scaling from `rope_theta`, `rope_scaling` (v4) and `rope_parameters` (v5), which must agree."""
    sources = [get.values.get(key) or {} for key in ("rope_parameters", "rope_scaling")]
    if not all(isinstance(source, dict) for source in sources):
        raise ConfigError("rope_parameters or rope_scaling is not an object", where=get.where)
    merged: dict[str, Any] = {}
    for source in [*sources, {"rope_theta": get.values.get("rope_theta")}]:
        for key, value in source.items():
            key = "rope_type" if key == "type" else key
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{key} = {value} is not finite", where=get.where)
            if value is not None and merged.setdefault(key, value) != value:
                raise ConfigError(f"{key} is given as {merged[key]!r} and as {value!r}", where=get.where)
    rope = _Fields(merged, get.where)
    rope.refuse("partial_rotary_factor", [1, 1.0])
    default = 10_000.0 if architecture == "llama" else ...
    return rope.get("rope_theta", float, default), _scaling(rope, max_positions)


def _scaling(rope: _Fields, max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", str, "default")
    if kind == "default":
        return None
    if kind not in ("linear", "yarn", "llama3"):
        raise UnsupportedModelError(f"rope_type {kind!r} is not implemented", where=rope.where)
    for key in ("mscale", "mscale_all_dim"):
        rope.refuse(key, [])
    rope.refuse("truncate", [True])
    factor = rope.get("factor", float)
    if not 1 <= factor <= 2**20:
        raise ConfigError(f"rope factor = {factor} is outside 1 … {2**20}", where=rope.where)
    attention_factor = 0.1 * math.log(factor) + 1.0 if kind == "yarn" else 1.0
    scaling = RopeScaling(
        kind=kind,
        factor=factor,
        original_max_position_embeddings=rope.get("original_max_position_embeddings", int, max_positions),
        attention_factor=rope.get("attention_factor", float, attention_factor) if kind == "yarn" else 1.0,
        beta_fast=rope.get("beta_fast", float, 32.0),
        beta_slow=rope.get("beta_slow", float, 1.0),
        low_freq_factor=rope.get("low_freq_factor", float, 1.0),
        high_freq_factor=rope.get("high_freq_factor", float, 4.0),
    )
    _check_scaling(scaling, rope.where)
    return scaling


def _check_scaling(scaling: RopeScaling, where: str) -> None:
    """Refuse what the formulas cannot be computed with."""
    if not 1 <= scaling.original_max_position_embeddings <= 2**28:
        raise ConfigError(
            f"original_max_position_embeddings = {scaling.original_max_position_embeddings} is outside 1 … {2**28}",
            where=where,
        )
    positive = {"attention_factor": scaling.attention_factor}
    ascending = ("low_freq_factor", "high_freq_factor") if scaling.kind == "llama3" else ("beta_slow", "beta_fast")
    low, high = (getattr(scaling, name) for name in ascending)
    positive |= dict(zip(ascending, (low, high), strict=True))
    for name, value in positive.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} = {value} is not a positive number", where=where)
    if scaling.kind != "linear" and low >= high:
        raise ConfigError(f"{ascending[0]} = {low} is not below {ascending[1]} = {high}", where=where)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    """Read a GGUF file's metadata; sizes that the metadata leaves open come from the tensors' shapes.

    Raises:
        ConfigError: wrong or contradictory. UnsupportedModelError: not implemented.
    """
    where = "GGUF metadata"
    architecture = _Fields(metadata, where).get("general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not implemented",
            where=where,
            hint="known: " + ", ".join(ARCHITECTURES),
        )
    get = _Fields({k.removeprefix(architecture + "."): v for k, v in metadata.items()}, where)
    get.refuse("expert_count", [0])
    if "rope_freqs.weight" in tensors:
        raise UnsupportedModelError("rope_freqs.weight (Llama 3 scaling inside GGUF) is not implemented", where=where)
    hidden, heads = get.get("embedding_length", int), get.get("attention.head_count", int)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError("token_embd.weight is missing or not a matrix", where=where)
    head_dim = get.get("attention.key_length", int, hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        get.refuse(key, [head_dim])
    max_positions = get.get("context_length", int)
    scaling = _scaling(_gguf_rope(get), max_positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=get.get("feed_forward_length", int),
        num_layers=get.get("block_count", int),
        num_heads=heads,
        num_kv_heads=get.get("attention.head_count_kv", int, heads),
        head_dim=head_dim,
        rms_norm_eps=get.get("attention.layer_norm_rms_epsilon", float),
        rope_theta=get.get("rope.freq_base", float, 10_000.0),
        rope_scaling=scaling,
        max_position_embeddings=_stretched(max_positions, scaling),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        dtype=_gguf_dtype(tensors.values()),
        bos_token_id=_first(metadata.get("tokenizer.ggml.bos_token_id"), where),
        eos_token_ids=token_ids(metadata.get("tokenizer.ggml.eos_token_id"), where),
    )


def _gguf_rope(get: _Fields) -> _Fields:
    names = {
        "rope.scaling.type": "rope_type",
        "rope.scaling.factor": "factor",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
    rope = {ours: get.values[theirs] for theirs, ours in names.items() if theirs in get.values}
    if isinstance(rope.get("rope_type"), str) and rope["rope_type"] == "none":
        return _Fields({}, get.where)
    return _Fields(rope, get.where)


def _gguf_dtype(tensors: Iterable[TensorInfo]) -> str:
    plain = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    kinds = {tensor.dtype for tensor in tensors if len(tensor.shape) == 2}
    return plain[kinds.pop()] if len(kinds) == 1 and kinds <= plain.keys() else "bfloat16"
