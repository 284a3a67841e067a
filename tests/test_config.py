"""Configurations in every spelling, and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from qwill.checkpoint_names import expected_tensors
from qwill.config import config_from_gguf, config_from_json, load_config, load_generation_config
from qwill.errors import ConfigError, FormatError, ModelNotFoundError, QwillError, UnsupportedModelError
from qwill.formats import TensorInfo, open_checkpoint

QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "tie_word_embeddings": True, "hidden_act": "silu",
    "use_sliding_window": False, "sliding_window": None, "attention_bias": False, "torch_dtype": "bfloat16",
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
THETA_V4 = {"rope_theta": 1000000, "rope_scaling": None}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


def write(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**QWEN3, **values}))
    return folder


@pytest.mark.parametrize(
    "spelling",
    [
        THETA_V4,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}},
        {"rope_scaling": {"rope_theta": 1e6, "rope_type": "default"}},
    ],
)
def test_every_spelling_of_theta_is_read(spelling: dict[str, Any], tmp_path: Path) -> None:
    config = config_from_json(write(tmp_path, **spelling))
    assert config.rope_theta == 1e6
    assert config.rope_scaling is None


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_theta": 5e5}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "rope_type": "linear", **YARN}},
    ],
)
def test_a_configuration_that_contradicts_itself_is_an_error(spelling: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is given as"):
        config_from_json(write(tmp_path, **spelling))


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_yarn_is_read_in_both_spellings(key: str, place: str, tmp_path: Path) -> None:
    config = config_from_json(write(tmp_path, rope_theta=1e6, **{place: {key: "yarn", **YARN}}))
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("yarn", 4.0)
    assert config.rope_scaling.attention_factor == pytest.approx(1.1386294361)  # 0.1 ln 4 + 1
    assert config.max_position_embeddings == 131072


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "qwill", "version": 2, "quant": "int4"}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 0.7}}, "mscale"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        config_from_json(write(tmp_path, **{**THETA_V4, **changes}))


HOSTILE: list[Any] = [0, -1, 2**31, 2**63, 1.5, "16", True, [], {}, "NaN"]


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
     "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta"],
)  # fmt: skip
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_number_is_a_typed_error(key: str, value: Any, tmp_path: Path) -> None:
    accepted_floats = key in ("rms_norm_eps", "rope_theta") and isinstance(value, (int, float)) and 0 < value < 2**63
    folder = write(tmp_path, **{**THETA_V4, key: value})
    if accepted_floats and value is not True:
        config_from_json(folder)
        return
    with pytest.raises(ConfigError, match=r"is (not|outside|odd)|cannot be shared"):
        config_from_json(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": [{}]},
        {"layer_types": [1, "a"]},
        {"rms_norm_eps": 10**400},
        {"rope_theta": float("nan")},
        {"rope_theta": 1},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": 0}},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": float("inf")}},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": 1, "beta_slow": 32}},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": 1e308}},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "original_max_position_embeddings": 0}},
        {"rope_scaling": {"rope_type": "yarn", **YARN, "original_max_position_embeddings": -5}},
        {"rope_scaling": {"rope_type": "llama3", **YARN, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
    ],
)
def test_numbers_that_no_formula_can_use_are_typed_errors(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        config_from_json(write(tmp_path, **{**THETA_V4, **changes}))


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers", "rms_norm_eps", "rope_theta"])
def test_a_missing_number_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        config_from_json(write(tmp_path, **{**THETA_V4, key: None}))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 5000, "null", '"x"', "\x00"])
def test_broken_json_is_a_typed_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError):
        config_from_json(tmp_path)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        load_config(tmp_path)


def test_a_config_that_is_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model").mkdir()
    write(tmp_path / "elsewhere", **THETA_V4)
    (tmp_path / "model/config.json").symlink_to(tmp_path / "elsewhere/config.json")
    with pytest.raises(FormatError, match="leads out"):
        config_from_json(tmp_path / "model")


def test_a_config_that_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        config_from_json(tmp_path)


@pytest.mark.parametrize(
    ("value", "ids"), [(5, (5,)), ([5, 6], (5, 6)), (None, ()), ([], ())], ids=["one", "list", "none", "empty"]
)
def test_end_tokens_are_one_or_many(value: Any, ids: tuple[int, ...], tmp_path: Path) -> None:
    assert config_from_json(write(tmp_path, **THETA_V4, eos_token_id=value)).eos_token_ids == ids


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen3-biases", "qwen2", "llama"])
def test_expected_tensors_are_those_that_transformers_saves(kind: str, tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(kind)
    with open_checkpoint(folder) as checkpoint:
        saved = {name: info.shape for name, info in checkpoint.tensors.items()}
    assert expected_tensors(load_config(folder)) == saved


def test_untold_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    for kind in ("qwen3", "qwen2", "llama"):
        values = {**QWEN3, **THETA_V4, "model_type": kind}
        for key in ("tie_word_embeddings", "attention_bias", "head_dim"):
            del values[key]
        (tmp_path / "config.json").write_text(json.dumps(values))
        ours = config_from_json(tmp_path)
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings, kind
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 1024 // 16), kind


GGUF: dict[str, Any] = {
    "general.architecture": "qwen3", "qwen3.block_count": 2, "qwen3.context_length": 4096,
    "qwen3.embedding_length": 64, "qwen3.feed_forward_length": 96, "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 32, "qwen3.attention.value_length": 32,
    "qwen3.rope.freq_base": 1e6, "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.eos_token_id": 7,
}  # fmt: skip


def tensors(**shapes: tuple[int, ...]) -> dict[str, TensorInfo]:
    names = {"token_embd.weight": (100, 64), "blk.0.attn_q_norm.weight": (32,), **shapes}
    return {name: TensorInfo(name, "Q8_0", shape, Path("x.gguf"), 0, 0) for name, shape in names.items()}


def test_gguf_metadata_is_read() -> None:
    config = config_from_gguf(GGUF, tensors())
    assert (config.architecture, config.vocab_size, config.head_dim, config.heads_per_kv) == ("qwen3", 100, 32, 2)
    assert config.qk_norm
    assert config.tie_word_embeddings
    assert not config.qkv_bias
    assert config.eos_token_ids == (7,)
    assert config.dtype == "bfloat16"


def test_gguf_yarn_is_read() -> None:
    scaling = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 1024,
    }
    config = config_from_gguf({**GGUF, **scaling}, tensors())
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_max_position_embeddings == 1024
    assert config.max_position_embeddings == 4096


@pytest.mark.parametrize("key", [key for key in GGUF if key not in ("general.architecture",)])
@pytest.mark.parametrize("value", [0, -1, 2**31, "many", True, [4, 4], np.array([4, 4]), None])
def test_hostile_gguf_metadata_is_a_typed_error_or_harmless(key: str, value: Any) -> None:
    with contextlib.suppress(QwillError):
        config_from_gguf({**GGUF, key: value}, tensors())


@pytest.mark.parametrize(
    ("metadata", "extra", "named"),
    [
        ({"general.architecture": "gemma"}, {}, "gemma"),
        ({"qwen3.expert_count": 8}, {}, "expert_count"),
        ({"qwen3.rope.dimension_count": 16}, {}, "dimension_count"),
        ({}, {"rope_freqs.weight": (16,)}, "rope_freqs"),
    ],
)
def test_gguf_features_that_are_not_implemented_are_refused(
    metadata: dict[str, Any], extra: dict[str, tuple[int, ...]], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        config_from_gguf({**GGUF, **metadata}, tensors(**extra))


@pytest.mark.parametrize("key", ["expert_count", "rope.scaling.type", "attention.value_length", "rope.dimension_count"])
def test_a_gguf_list_where_one_value_belongs_is_a_typed_error(key: str) -> None:
    with pytest.raises(ConfigError):
        config_from_gguf({**GGUF, f"qwen3.{key}": np.array([1, 2])}, tensors())


def test_generation_config_is_optional(tmp_path: Path) -> None:
    assert load_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}')
    assert load_generation_config(tmp_path) == {"top_k": 20}
