"""Models that the user names by a path. Looks, reads directory entries, and never writes."""

from __future__ import annotations

import os
from pathlib import Path

from qwill.errors import ModelNotFoundError, UsageError
from qwill.hub.files import missing_files
from qwill.hub.names import LocalModel, ModelName, nearest

__all__ = ["find"]


def find(name: ModelName) -> LocalModel:
    """The model at a path: a .gguf file, a folder with config.json and safetensors, or a folder with one .gguf.

    Raises:
        ModelNotFoundError: nothing there, or which file is missing.
        UsageError: several .gguf files, and none of them was named.
        UnsupportedModelError: only weights of a kind that qwill never opens (pickle).
    """
    assert name.path is not None
    path = name.path
    if os.path.isfile(path):  # unlike Path.is_file, takes a name that is too long for "not there"
        if path.suffix.lower() == ".gguf":
            return LocalModel(name.text, path, "local", None)
        raise UsageError(f"{path} is not a .gguf file", hint="give the folder of the model, or a .gguf file")
    if not os.path.isdir(path):
        raise ModelNotFoundError(f"{path} {_why_not(path)}", hint=_near(path))
    missing = missing_files(path)
    if not missing:
        return LocalModel(name.text, path, "local", None)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return LocalModel(name.text, ggufs[0], "local", None)
    if ggufs:
        raise UsageError(f"{path} holds {len(ggufs)} .gguf files", hint="name one: " + ", ".join(map(str, ggufs[:5])))
    raise ModelNotFoundError(
        f"{path} is not a model folder",
        where="missing: " + ", ".join(missing[:5]),
        hint="a folder with config.json, *.safetensors and tokenizer.json, or a .gguf file; "
        "to download instead, give org/name or a catalog name",
    )


def _why_not(path: Path) -> str:
    """What is wrong with a path that is neither a file nor a folder."""
    if os.path.islink(path):
        return "is a link that leads nowhere, or in a circle"
    return "is neither a file nor a folder, but a pipe, socket or device" if os.path.lexists(path) else "does not exist"


def _near(path: Path) -> str:
    folder = path.parent
    around = [p for p in folder.iterdir() if p != path] if os.path.isdir(folder) else []
    siblings = [str(p) for p in around if p.is_dir() or (p.suffix == ".gguf" and p.is_file())]
    near = nearest(str(path), siblings)
    if near:
        return "did you mean " + ", ".join(near) + "?"
    return "check the path; to download, give org/name or a catalog name instead"
