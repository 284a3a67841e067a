"""The structure of a model, from its files' headers alone: modules, tensors, and what does not fit its configuration.

Reads no tensor data. A damaged model can still be looked at: what is wrong becomes a `Mismatch`, and only a header
that cannot be read is an error. Knows nothing of how a structure is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwill.checkpoint_names import EMBEDDING, LM_HEAD, expected_tensors, gguf_to_hf_name, match_tensors
from qwill.config import ModelConfig, config_from_gguf, config_from_json
from qwill.errors import ConfigError, ModelNotFoundError
from qwill.formats import Checkpoint, TensorInfo, open_checkpoint
from qwill.inspect.modules import Module, Tensor, build_tree

__all__ = ["Mismatch", "Parameters", "Structure", "structure"]

MAX_TOKENIZER_CONFIG_BYTES = 1 << 24
_GGUF_UNUSED = 5
"""Token type, in GGUF metadata, of a vocabulary entry that stands for nothing."""


@dataclass(frozen=True)
class Mismatch:
    """Something about a model that is not as it should be.

    `kind` is "config" (it cannot be read; `details` says why), or "missing", "unused" or "wrong shape", whose
    `details` are one text per tensor.
    """

    kind: str
    details: tuple[str, ...]


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters. `language_model` is everything but embedding and head: the layers and the last norm.

    `not_counted` names the stored tensors that add nothing: a copy of the tied embedding, rotary tables, and tensors
    that the model has no use for. `stored` counts every element in the files, these included.
    """

    embedding: int
    language_model: int
    lm_head: int
    stored: int
    not_counted: tuple[str, ...]

    @property
    def total(self) -> int:
        """Parameters of the model, each counted once."""
        return self.embedding + self.language_model + self.lm_head


@dataclass(frozen=True)
class Structure:
    """What the headers of a model's files say.

    Attributes:
        name: as the caller calls the model.
        source: where the headers were read: "local" for files on this machine, or the hub's name.
        format: "safetensors" or "gguf".
        files: name -> size in bytes of the files that hold the tensors.
        config: None when there is none that can be read; `mismatches` then says why.
        root: the tree of modules, in the names of Hugging Face checkpoints whatever the format.
        tensors: every tensor, in the order of the files.
        mismatches: what is not as it should be; empty for a good model.
        tokenizer_size: ids that the tokenizer uses, where that is cheap to know; the vocabulary may be padded beyond.
    """

    name: str
    source: str
    format: str
    files: Mapping[str, int]
    config: ModelConfig | None
    root: Module
    tensors: tuple[Tensor, ...]
    mismatches: tuple[Mismatch, ...]
    tokenizer_size: int | None

    @property
    def parameters(self) -> Parameters:
        """The counts by part of the model."""
        counts = {role: sum(t.numel for t in self.tensors if t.role == role) for role in Tensor.COUNTED}
        not_counted = tuple(tensor.name for tensor in self.tensors if not tensor.is_counted)
        return Parameters(**counts, stored=sum(t.numel for t in self.tensors), not_counted=not_counted)


def structure(path: Path, *, name: str | None = None, source: str = "local") -> Structure:
    """Read the headers of a model folder, a .gguf file or a .safetensors file.

    Raises:
        ModelNotFoundError: there is nothing at `path`, or nothing that can be read.
        FormatError: a header breaks its format's rules.
        UnsupportedModelError: a file of a kind that is not read.
    """
    with open_checkpoint(path) as checkpoint:
        config, mismatches = _config(checkpoint)
        tensors = _tensors(checkpoint, config)
        if config is not None:
            mismatches += _compare(checkpoint, config)
        return Structure(
            name=str(path) if name is None else name,
            source=source,
            format=checkpoint.format,
            files={file.name: file.stat().st_size for file in checkpoint.files},
            config=config,
            root=build_tree(tensors),
            tensors=tensors,
            mismatches=tuple(mismatches),
            tokenizer_size=_tokenizer_size(checkpoint, config),
        )


def _config(checkpoint: Checkpoint) -> tuple[ModelConfig | None, list[Mismatch]]:
    try:
        if checkpoint.format == "gguf":
            return config_from_gguf(checkpoint.metadata, checkpoint.tensors), []
        return config_from_json(_folder(checkpoint)), []
    except (ConfigError, ModelNotFoundError) as error:
        return None, [Mismatch("config", (error.what,))]


def _folder(checkpoint: Checkpoint) -> Path:
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent


def _tensors(checkpoint: Checkpoint, config: ModelConfig | None) -> tuple[Tensor, ...]:
    expected = None if config is None else expected_tensors(config)
    tied = config is not None and config.tie_word_embeddings
    tensors = []
    for info in checkpoint.tensors.values():
        name = (gguf_to_hf_name(info.name) if checkpoint.format == "gguf" else None) or info.name
        tensors.append(_tensor(info, name, _role(name, expected, tied)))
    return tuple(tensors)


def _tensor(info: TensorInfo, name: str, role: str) -> Tensor:
    return Tensor(
        name=name,
        stored_name=info.name,
        dtype=info.dtype,
        shape=info.shape,
        nbytes=info.nbytes,
        file=info.file.name,
        offset=info.offset,
        role=role,
    )


def _role(name: str, expected: Mapping[str, Any] | None, tied: bool) -> str:
    if name.endswith("rotary_emb.inv_freq"):
        return "buffer"
    if tied and name == LM_HEAD:
        return "tied copy"
    if expected is not None and name not in expected:
        return "unused"
    return {EMBEDDING: "embedding", LM_HEAD: "lm_head"}.get(name, "language_model")


def _compare(checkpoint: Checkpoint, config: ModelConfig) -> list[Mismatch]:
    match = match_tensors(checkpoint, config)
    texts = {
        "missing": [f"{name} {shape_text(shape)}" for name, shape in match.missing.items()],
        "unused": [f"{info.name} {shape_text(info.shape)}" for info in match.unused],
        "wrong shape": [
            f"{info.name}: {shape_text(info.shape)}, the configuration asks for {shape_text(want)}"
            for info, want in match.wrong_shape
        ],
    }
    return [Mismatch(kind, tuple(details)) for kind, details in texts.items() if details]


def shape_text(shape: tuple[int, ...]) -> str:
    """(2048, 1024), and (1024) for a vector."""
    return "(" + ", ".join(map(str, shape)) + ")"


def _tokenizer_size(checkpoint: Checkpoint, config: ModelConfig | None) -> int | None:
    """Highest id of a real token, plus one, if that takes no parsing of a whole vocabulary."""
    if checkpoint.format != "gguf":
        return _size_from_added_tokens(_folder(checkpoint) / "tokenizer_config.json", config)
    kinds = checkpoint.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, np.ndarray):
        return None
    real = np.flatnonzero(kinds != _GGUF_UNUSED)
    return int(real[-1]) + 1 if real.size else None


def _size_from_added_tokens(file: Path, config: ModelConfig | None) -> int | None:
    """Added tokens that make one run in the upper half of the vocabulary follow the learned ones: the last ends it."""
    try:
        if config is None or file.stat().st_size > MAX_TOKENIZER_CONFIG_BYTES:
            return None
        ids = sorted(int(key) for key in json.loads(file.read_bytes())["added_tokens_decoder"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the tokenizer's own reader reports what is wrong; here it is only a remark
    one_run = bool(ids) and ids == list(range(ids[0], ids[0] + len(ids)))
    return ids[-1] + 1 if one_run and config.vocab_size // 2 <= ids[0] and ids[-1] < config.vocab_size else None
