"""Checkpoint files, read by us within bounds: safetensors and GGUF. Headers first; tensors' bytes when asked for.

Imports numpy, never torch. Knows nothing of models and configurations.
"""

from __future__ import annotations

from pathlib import Path

from qwill.errors import FormatError, ModelNotFoundError
from qwill.formats.checkpoint import Checkpoint, TensorInfo
from qwill.formats.gguf import read_gguf
from qwill.formats.safetensors import read_safetensors, read_shards

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file, a .safetensors file, or a folder of safetensors files. Parses headers only."""
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise ModelNotFoundError("there is no such file or folder", where=str(path))
    if path.suffix == ".gguf":
        return read_gguf(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    raise FormatError("neither a .gguf nor a .safetensors file", where=str(path))


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "model.safetensors").exists():
        return read_safetensors(folder / "model.safetensors")
    if (folder / "model.safetensors.index.json").exists():
        return read_shards(folder / "model.safetensors.index.json")
    raise ModelNotFoundError("no model.safetensors in the folder", where=str(folder))
