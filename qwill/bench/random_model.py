"""Models of random weights and real sizes, for benchmarks without a download: speed does not depend on the values.

`random:qwen3-0.6b` has the sizes of Qwen3-0.6B (arXiv:2505.09388) and its config.json's spelling; weights are drawn
as `transformers` would initialize them (normal, 0.02; norms 1), from a fixed seed. Its tokenizer has the 256 bytes and
then tokens that no text produces. Written once, into the cache folder. Knows nothing of measuring.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwill.checkpoint_names import expected_tensors
from qwill.config import ModelConfig, config_from_json
from qwill.errors import ModelNotFoundError
from qwill.hub.progress import Progress, SilentProgress
from qwill.hub.storage import cache_root, check_space, locked

if TYPE_CHECKING:
    import torch

__all__ = ["PREFIX", "SIZES", "is_random", "random_model", "write_random_model"]

PREFIX = "random:"
SEED = 0

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}

SIZES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "eos_token_id": 151645,
    },
    "qwen3-tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "eos_token_id": 511,
    },
}
"""Name after `random:` -> what config.json says besides what all of them share."""


def is_random(model: str) -> bool:
    """Whether a model's name asks for random weights."""
    return model.startswith(PREFIX)


def random_model(model: str, progress: Progress | None = None) -> Path:
    """The folder of `random:NAME`, written now if it is not there yet.

    Raises:
        ModelNotFoundError: no such size.
        DiskSpaceError: it does not fit.
    """
    name = model.removeprefix(PREFIX)
    if name not in SIZES:
        raise ModelNotFoundError(f"there is no random model {name!r:.100}", hint="known: " + ", ".join(SIZES))
    folder = cache_root() / "random" / name
    progress = progress or SilentProgress()
    with locked(folder.with_name(f"{name}.lock"), progress):
        if not folder.is_dir():
            partial = folder.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            write_random_model(partial, name, progress)
            partial.rename(folder)
    return folder


def write_random_model(folder: Path, name: str, progress: Progress | None = None) -> None:
    """Write config.json, model.safetensors (bf16) and a tokenizer into a new folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**_QWEN3, **SIZES[name]}, indent=2))
    config = config_from_json(folder)
    check_space(folder, _num_bytes(config))
    _write_tokenizer(folder, config.vocab_size)
    progress = progress or SilentProgress()
    progress.start(_num_bytes(config), f"write {PREFIX}{name}")
    try:
        tensors = dict(_tensors(config, progress))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    finally:
        progress.finish()


def _num_bytes(config: ModelConfig) -> int:
    return 2 * sum(math.prod(shape) for shape in expected_tensors(config).values())


def _tensors(config: ModelConfig, progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint in bf16, by its name there."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    for name, shape in expected_tensors(config).items():
        tensor = torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) > 1:
            tensor.normal_(0.0, 0.02, generator=generator)
        progress.advance(tensor.nbytes)
        yield name, tensor


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level BPE without merges: ids 0 … 255 are the bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: token_id for token_id, letter in enumerate(letters)}
    vocab.update({f"<{token_id}>": token_id for token_id in range(len(letters), vocab_size)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2))
