"""What is decided when a model is loaded: dtype, device, threads, context, cache size, sampling defaults."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill.config import load_config
from qwill.errors import CapacityError, ConfigError, ModelNotFoundError, SettingError, UsageError
from qwill.hub.progress import SilentProgress
from qwill.loader import choose_device, choose_dtype, choose_numerics, load, sampling_defaults
from qwill.ops import native_ops
from qwill.packing import Packing
from qwill.settings import EngineSettings

CPU = torch.device("cpu")


class Recorder(SilentProgress):
    """A progress that remembers what it was told."""

    total = 0
    done = 0

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        self.total = total

    def advance(self, count: int, item: str = "") -> None:
        self.done += count


def test_progress_counts_every_byte_of_the_weights(tiny_chat_model: Path) -> None:
    progress = Recorder()
    load(str(tiny_chat_model), EngineSettings(max_model_len=64, threads=1), progress)
    assert progress.done == progress.total > 0


@pytest.mark.parametrize(
    ("setting", "checkpoint", "device", "chosen"),
    [
        ("auto", "bfloat16", "cpu", torch.bfloat16),
        ("auto", "float32", "cpu", torch.float32),
        ("auto", "float16", "cpu", torch.float32),
        ("auto", "float16", "cuda", torch.float16),
        ("float16", "bfloat16", "cpu", torch.float16),
        ("float32", "bfloat16", "cpu", torch.float32),
    ],
)
def test_dtype_is_the_checkpoints_unless_it_would_overflow(
    setting: str, checkpoint: str, device: str, chosen: torch.dtype, tiny_chat_model: Path
) -> None:
    config = dataclasses.replace(load_config(tiny_chat_model), dtype=checkpoint)
    assert choose_dtype(setting, config, torch.device(device)) == chosen


def test_a_device_that_is_not_there_is_an_error() -> None:
    assert choose_device("cpu") == CPU
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="not available"):
            choose_device("cuda:1")


def test_threads_are_set_and_told(tiny_chat_model: Path) -> None:
    before = torch.get_num_threads()
    try:
        assert load(str(tiny_chat_model), EngineSettings(threads=1, max_model_len=64), SilentProgress()).threads == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


TOKEN_BYTES = 2 * 3 * 2 * 16 * 4  # K and V, 3 layers, 2 key-value heads, 16 dimensions, fp32


@pytest.mark.parametrize(
    ("settings", "length", "blocks"),
    [
        ({"max_model_len": 100, "max_num_seqs": 3}, 100, 3 * 64),
        ({"max_num_seqs": 1}, 4096, 256),
        ({"max_model_len": 64, "kv_memory": 128 * TOKEN_BYTES}, 64, 8),
        ({"kv_memory": 100 * TOKEN_BYTES}, 96, 6),
        ({}, 4096, 64 * 64),
    ],
)
def test_the_cache_holds_the_context(settings: dict[str, Any], length: int, blocks: int, tiny_chat_model: Path) -> None:
    loaded = load(str(tiny_chat_model), EngineSettings(threads=1, kv_dtype="float32", **settings), SilentProgress())
    assert (loaded.max_model_len, loaded.kv_cache.num_blocks) == (length, blocks)


def test_an_int8_cache_counts_its_scales(tiny_chat_model: Path) -> None:
    settings = EngineSettings(kv_dtype="int8", kv_memory=2 * 3 * 2 * (16 + 4) * 16 * 5, threads=1)
    cache = load(str(tiny_chat_model), settings, SilentProgress()).kv_cache
    assert cache.num_blocks == 5
    assert cache.key_scales is not None


NATIVE = pytest.mark.skipif(native_ops() is None, reason="the native kernels do not run here")


@NATIVE
@pytest.mark.parametrize(
    ("settings", "cache", "packing"),
    [
        ({}, "bfloat16", Packing(torch.bfloat16, "int8", keep=True)),
        ({"quant": "none"}, "bfloat16", Packing(torch.bfloat16, "none", keep=True)),
        ({"quant": "int4"}, "bfloat16", Packing(torch.bfloat16, "int4", keep=False)),
        ({"dtype": "float32"}, "float32", Packing(torch.float32, "none", keep=False)),
        ({"dtype": "float32", "quant": "int8"}, "bfloat16", Packing(torch.float32, "int8", keep=False)),
        ({"dtype": "bfloat16", "kv_dtype": "int8"}, "int8", Packing(torch.bfloat16, "none", keep=False)),
        ({"dtype": "float16"}, "float16", None),
    ],
)
def test_number_formats_follow_the_settings(
    settings: dict[str, Any], cache: str, packing: Packing | None, tiny_checkpoint: Callable[..., Path]
) -> None:
    config = dataclasses.replace(load_config(tiny_checkpoint("qwen3")), dtype="bfloat16")
    numerics = choose_numerics(EngineSettings(**settings), config, torch.device("cpu"))
    assert (str(numerics.kv_cache), numerics.packing) == (f"torch.{cache}", packing)
    assert numerics.activations is (torch.float16 if packing is None else torch.float32)


def test_quantization_without_native_kernels_is_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    config = load_config(tiny_checkpoint("qwen3"))
    with pytest.raises(SettingError, match="quant = int4 needs the native kernels"):
        choose_numerics(EngineSettings(quant="int4"), config, torch.device("cuda"))


def test_a_context_that_kv_memory_cannot_hold_is_refused_with_a_length_that_fits(tiny_chat_model: Path) -> None:
    settings = EngineSettings(max_model_len=200, kv_memory=100 * TOKEN_BYTES, kv_dtype="float32", threads=1)
    with pytest.raises(CapacityError, match="max_model_len to 96"):
        load(str(tiny_chat_model), settings, SilentProgress())


def test_a_cache_too_small_for_anything_is_refused(tiny_chat_model: Path) -> None:
    with pytest.raises(CapacityError):
        load(str(tiny_chat_model), EngineSettings(kv_memory=10, threads=1), SilentProgress())


def test_a_context_longer_than_the_models_is_refused(tiny_chat_model: Path) -> None:
    with pytest.raises(SettingError, match="4096"):
        load(str(tiny_chat_model), EngineSettings(max_model_len=4097, threads=1), SilentProgress())


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        load(str(tmp_path / "nowhere"), EngineSettings(offline=True), SilentProgress())


@pytest.mark.parametrize(
    ("generation", "temperature", "top_p"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "do_sample": True, "max_new_tokens": 5}, 0.6, 0.95),
        ({"do_sample": False, "temperature": 0.6}, 0.0, 1.0),
        ({"top_p": 0.5}, 1.0, 0.5),
        ({}, 0.7, 0.8),
        ({"eos_token_id": [1, 2]}, 0.7, 0.8),
    ],
)
def test_sampling_defaults_are_the_models(generation: dict[str, Any], temperature: float, top_p: float) -> None:
    params = sampling_defaults(generation)
    assert (params.temperature, params.top_p) == (temperature, top_p)


@pytest.mark.parametrize("value", ["hot", -1.0, True, 1e9])
def test_a_hostile_generation_config_is_a_typed_error(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json: temperature"):
        sampling_defaults({"temperature": value}, where="folder")


def test_a_cache_that_the_allocator_refuses_is_a_typed_error(tiny_chat_model: Path) -> None:
    with pytest.raises(CapacityError, match="KV cache"):
        load(str(tiny_chat_model), EngineSettings(kv_memory=2**46, threads=1), SilentProgress())


def test_ends_are_the_union_of_all_sources(tiny_chat_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_chat_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load(str(folder), EngineSettings(max_model_len=64, threads=1), SilentProgress())
    assert {7, 256, 258} <= loaded.eos_token_ids
