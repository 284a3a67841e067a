"""Checkpoint files, read by us within bounds: safetensors and GGUF. Headers first; tensors' bytes when asked for.

Imports numpy, never torch. Knows nothing of models and configurations. Nothing here runs code from a file: pickled
weights are refused.
"""

from __future__ import annotations

from pathlib import Path

from qwill.errors import FormatError, ModelNotFoundError
from qwill.formats.checkpoint import Checkpoint, TensorInfo
from qwill.formats.folder import open_folder
from qwill.formats.gguf import read_gguf
from qwill.formats.safetensors import read_safetensors

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file, a .safetensors file, or a folder of safetensors files. Parses headers only.

    Raises:
        ModelNotFoundError: when there is no such file or folder, or the folder holds no weights that can be read.
        FormatError: when a file breaks a rule of its format.
        UnsupportedModelError: when a file is valid, but of a kind that qwill does not implement.
    """
    try:
        return _open(path)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return open_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return read_gguf(path)
    if suffix == ".safetensors":
        return read_safetensors(path)
    if not path.exists():
        hint = "give a model's folder or file, or fetch a model with `qwill pull NAME`"
        raise ModelNotFoundError("there is no such file or folder", where=str(path), hint=hint)
    if suffix in _PICKLED:
        hint = "loading a pickle can run code: convert to safetensors first"
        raise FormatError("pickled weights are not read", where=str(path), hint=hint)
    raise FormatError("neither a .gguf nor a .safetensors file, nor a folder", where=str(path))
