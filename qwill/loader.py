"""From a model's name to everything needed to run it: files, configuration, tokenizer, weights, KV cache.

The only place that decides dtype, device, threads, context length and cache size. Knows no requests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from qwill.batch import KVCache
from qwill.config import ModelConfig, load_config, load_generation_config
from qwill.errors import CapacityError, ConfigError, SettingError, UsageError
from qwill.formats import open_checkpoint
from qwill.hub import LocalModel, resolve
from qwill.hub.progress import Progress
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops, warn_if_not_built, why_no_native_ops
from qwill.packing import Packing
from qwill.quantization import PackedWeight
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings
from qwill.system import available_memory, usable_cores
from qwill.tokenizer import Tokenizer
from qwill.weights import decode_bytes, load_model

__all__ = ["LoadedModel", "load", "sampling_defaults"]

BLOCK_SIZE = 16
"""Tokens per block of the KV cache."""

USUAL_LENGTH = 1024
"""Tokens of prompt and answer for which there is a place in the KV cache, for each request that may run at once."""

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

UNSTATED_SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
"""For a model that ships no generation_config.json (a GGUF file cannot): what Qwen's model cards recommend."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, and what was decided for it."""

    local: LocalModel
    config: ModelConfig
    tokenizer: Tokenizer
    model: CausalLM
    kv_cache: KVCache
    dtype: str
    """Number format of the weights, of the first layer's down_proj as one for all."""
    decode_bytes: int
    """Bytes of weights that one decoded token reads: all of them, but of an untied embedding only a row."""
    device: torch.device
    threads: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    default_params: SamplingParams

    @property
    def vocab_size(self) -> int:
        """Ids that may be sampled: those of the model that the tokenizer has tokens for."""
        return min(self.tokenizer.vocab_size, self.config.vocab_size)


def load(name: str, settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Find (or fetch) the model called `name` and load it.

    Raises:
        QwillError: see `qwill.errors`; nothing is loaded then.
    """
    local = resolve(
        name,
        source=settings.source,
        revision=settings.revision,
        endpoint=settings.endpoint,
        offline=settings.offline,
        progress=progress,
    )
    config = load_config(local.path)
    device = choose_device(settings.device)
    numerics = choose_numerics(settings, config, device)
    _check_length(settings, config)
    default_params = sampling_defaults(load_generation_config(local.path), where=str(local.path))
    tokenizer = Tokenizer.load(local.path)
    threads = _set_threads(settings.threads)
    with open_checkpoint(local.path) as checkpoint:
        progress.start(sum(info.nbytes for info in checkpoint.tensors.values()), f"load {local.name}")
        try:
            model = load_model(
                checkpoint,
                config,
                dtype=numerics.activations,
                device=device,
                packing=numerics.packing,
                advance=progress.advance,
            )
        finally:
            progress.finish()
    max_model_len, blocks = _size_cache(settings, config, numerics.kv_cache, device)
    shape = (config.num_layers, blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return LoadedModel(
        local=local,
        config=config,
        tokenizer=tokenizer,
        model=model,
        kv_cache=_empty_cache(shape, numerics.kv_cache, device),
        dtype=_weight_format(model),
        decode_bytes=decode_bytes(model),
        device=device,
        threads=threads,
        max_model_len=max_model_len,
        eos_token_ids=frozenset((*config.eos_token_ids, *tokenizer.eos_token_ids)),
        default_params=default_params,
    )


def _weight_format(model: CausalLM) -> str:
    weight = model.model.layers[0].get_submodule("mlp.down_proj").weight
    return weight.parts[0].format.name if isinstance(weight, PackedWeight) else str(weight.dtype).removeprefix("torch.")


def choose_device(name: str) -> torch.device:
    """The device of a setting: "auto" takes CUDA where it is, else the CPU; MPS is taken when asked for.

    Raises:
        UsageError: the device asked for is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device("cuda" if there["cuda"] else "cpu")
    device = torch.device(name)
    if not there[device.type] or (device.index or 0) >= max(torch.cuda.device_count(), 1):
        raise UsageError(f"device {name} is not available to torch {torch.__version__}", hint="use device='cpu'")
    return device


def choose_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype of a setting; "auto" keeps the checkpoint's, but fp16 overflows on a CPU and becomes fp32 there."""
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if config.dtype == "float16" and device.type == "cpu" else DTYPES[config.dtype]


@dataclass(frozen=True)
class Numerics:
    """The number formats a model runs in.

    activations: of everything between the matrices, and of the matrices where there is no `packing`.
    packing: what becomes of the matrices for native kernels; None runs PyTorch's.
    """

    activations: torch.dtype
    kv_cache: torch.dtype
    packing: Packing | None


def choose_numerics(settings: EngineSettings, config: ModelConfig, device: torch.device) -> Numerics:
    """Number formats as the settings ask for, or as fits the model, the device and whether native kernels run.

    Raises:
        SettingError: these settings contradict each other.
    """
    dtype = choose_dtype(settings.dtype, config, device)
    native = device.type == "cpu" and native_ops() is not None and dtype is not torch.float16
    if not native and settings.quant in ("int8", "int4"):
        why = why_no_native_ops() or f"they do not run in {dtype} on {device}".replace("torch.", "")
        raise SettingError(f"quant = {settings.quant} needs the native kernels: {why}", hint="use quant='none'")
    kv_cache = KV_DTYPES.get(settings.kv_dtype, dtype)
    if not native:
        if device.type == "cpu":
            warn_if_not_built()
        return Numerics(dtype, kv_cache, None)
    quant = settings.quant
    if quant == "auto":
        quant = "int8" if settings.dtype == "auto" else "none"
    keep = settings.quant in ("auto", "none") and settings.dtype == "auto"
    if settings.kv_dtype == "auto" and quant != "none":
        kv_cache = torch.bfloat16
    return Numerics(torch.float32, kv_cache, Packing(dtype, quant, keep))


def _set_threads(threads: int | None) -> int:
    """Set torch's pool, for this whole process; OMP_NUM_THREADS counts where the setting is left open."""
    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or usable_cores())
    native = native_ops()
    if native is not None and threads is not None:
        native.set_threads(threads)
    return native.threads if native is not None else torch.get_num_threads()


def _check_length(settings: EngineSettings, config: ModelConfig) -> None:
    """Refuse, before anything is loaded, a context that the model does not have."""
    most = config.max_position_embeddings
    if settings.max_model_len is not None and settings.max_model_len > most:
        raise SettingError(
            f"max_model_len = {settings.max_model_len} is longer than the model's context of {most} tokens",
            hint=f"allowed: 1 … {most}",
        )


def _free_memory(device: torch.device) -> int | None:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()


def _empty_cache(shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> KVCache:
    try:
        return KVCache.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # torch's word for: the allocator refused
        raise CapacityError(
            "the memory for the KV cache cannot be had", hint="set max_model_len or kv_memory to less"
        ) from error


def _size_cache(
    settings: EngineSettings, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> tuple[int, int]:
    """Longest context in tokens, and blocks of the KV cache: as asked for, or enough for the longest context and for
    many shorter ones beside each other, within a quarter of the free memory.

    Raises:
        CapacityError: kv_memory or the memory cannot hold max_model_len.
    """
    wanted = settings.max_model_len or config.max_position_embeddings
    row_bytes = config.head_dim * dtype.itemsize + (torch.float32.itemsize if dtype is torch.int8 else 0)  # a scale
    block_bytes = 2 * BLOCK_SIZE * config.num_layers * config.num_kv_heads * row_bytes
    need = -(-wanted // BLOCK_SIZE) * block_bytes
    many = -(-settings.max_num_seqs * USUAL_LENGTH // BLOCK_SIZE) * block_bytes
    memory = settings.kv_memory or _memory_within(need, many, settings, _free_memory(device))
    blocks = memory // block_bytes
    if settings.max_model_len is None and blocks:
        wanted = min(wanted, blocks * BLOCK_SIZE)
    if blocks * BLOCK_SIZE < wanted:
        raise CapacityError(
            f"{wanted} tokens of context need {need / 2**20:.0f} MiB of KV cache; {memory / 2**20:.0f} MiB may be used",
            hint=f"set max_model_len to {max(blocks * BLOCK_SIZE, 1)} or less, or raise kv_memory",
        )
    return wanted, blocks


def _memory_within(need: int, many: int, settings: EngineSettings, free: int | None) -> int:
    """Bytes for the cache: `need` for one longest context and, for `many` requests, what a quarter of `free` allows.

    A context that was asked for may take all that is free.
    """
    if free is None:
        return max(need, many)
    return max(min(need, free if settings.max_model_len else free // 4), min(many, free // 4))


def sampling_defaults(generation: dict[str, Any], *, where: str = "") -> SamplingParams:
    """`SamplingParams` from generation_config.json, with its names; `where` is its folder.

    Raises:
        ConfigError: the file holds a value outside the allowed range.
    """
    if generation.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    stated = {name: generation[name] for name in names if generation.get(name) is not None}
    try:
        return SamplingParams(**(stated or UNSTATED_SAMPLING))
    except SettingError as error:
        raise ConfigError(f"generation_config.json: {error.what}", where=where, hint=error.hint) from error
