"""From a model folder to its safetensors files: one file, or the shards that an index lists.

Knows nothing of models. Which files may be opened, so that a folder from a stranger reads nothing else of this machine:

- An index may only list plain names of .safetensors files, which lie beside it.
- A file may be a link, but only to inside the model's folder, or to the blobs of the hub's cache that the folder
  belongs to: `blobs/` beside the `snapshots/` that holds the folder, or one level higher, where huggingface_hub keeps
  the blobs that repositories share.
- It must be a regular file: `checkpoint.MappedFile` refuses the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qwill.errors import FormatError, ModelNotFoundError
from qwill.formats.bounded import Cursor
from qwill.formats.bounded_json import parse_object
from qwill.formats.checkpoint import Checkpoint, MappedFile, TensorInfo
from qwill.formats.safetensors import MAX_HEADER_BYTES, read_header, read_safetensors

__all__ = ["allowed_file", "open_folder"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def open_folder(folder: Path) -> Checkpoint:
    """Open the folder's model.safetensors or, where there is none, what model.safetensors.index.json lists.

    Raises:
        ModelNotFoundError: when the folder holds neither; the hint says what to do with what it holds.
        FormatError: when a file breaks a rule, or index and shards disagree.
    """
    if _is_there(folder / SINGLE):
        return read_safetensors(allowed_file(folder, SINGLE))
    if _is_there(folder / INDEX):
        return _open_sharded(allowed_file(folder, INDEX))
    raise ModelNotFoundError(f"the folder has no {SINGLE} and no {INDEX}", where=str(folder), hint=_advice(folder))


def _advice(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"give the file itself: {folder / gguf[0]}"
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
        return "its weights are pickled, and loading a pickle can run code: convert to safetensors first"
    if any(name.endswith(".safetensors") for name in names):
        return f"it has other .safetensors files, but no {INDEX} that lists them: pull the model again"
    return "the folder is empty: pull the model" if not names else "is this a model folder? `qwill pull` fetches one"


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def allowed_file(folder: Path, name: str) -> Path:
    """`folder / name`, after following its links and comparing where they lead with the rule above.

    Raises:
        FormatError: when they lead out of the folder, or in a circle.
    """
    path = folder / name
    try:
        home, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError):
        raise FormatError("the file's links cannot be followed", where=str(path)) from None
    repositories = [parent.parent for parent in home.parents if parent.name == "snapshots"]
    blobs = [place / "blobs" for repository in repositories for place in (repository, repository.parent)]
    if not any(target.is_relative_to(place) for place in (home, *blobs)):
        raise FormatError(
            "the file is a link that leads out of the model's folder",
            where=f"{path} -> {target}",
            hint="copy the file into the folder, or give the path of the folder where it lies",
        )
    return path


def _open_sharded(index: Path) -> Checkpoint:
    wanted = _read_index(index)
    shards = sorted(set(wanted.values()))
    missing = [name for name in shards if not (index.parent / name).exists()]
    if missing:
        raise ModelNotFoundError(
            f"{len(missing)} of the {len(shards)} files that the index lists are missing: {_listed(missing)}",
            where=str(index),
            hint="pull the model again",
        )
    files: dict[Path, MappedFile] = {}
    try:
        tensors, metadata = _read_shards(index.parent, shards, files)
        _compare(index, wanted, tensors)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return Checkpoint(index.parent, "safetensors", tensors=tensors, metadata=metadata, files=files)


def _listed(names: Iterable[str]) -> str:
    shown = [f"{name:.200}" for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    file = MappedFile(index)
    try:
        cursor = Cursor(file.map, file=str(index))
        data = cursor.take(cursor.limit(file.size, MAX_HEADER_BYTES, "the index's size"), "the index")
    finally:
        file.close()
    try:
        wanted = parse_object(data.strip()).get("weight_map")
    except ValueError as error:
        raise FormatError(f"the index is not valid: {error}", where=str(index)) from None
    if not isinstance(wanted, dict) or not wanted:
        raise FormatError("the index has no weight_map", where=str(index))
    for tensor, name in wanted.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,200}\.safetensors", name):
            raise FormatError(
                f"the index names a file {name!r:.200} that is not a plain .safetensors name",
                where=f"{index}, tensor {tensor!r:.200}",
            )
    return wanted


def _read_shards(
    folder: Path, shards: list[str], files: dict[Path, MappedFile]
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors and metadata of all shards; each file that was opened is put into `files`."""
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for name in shards:
        path = allowed_file(folder, name)
        files[path] = MappedFile(path)
        found, about = read_header(files[path])
        twice = tensors.keys() & found.keys()
        if twice:
            tensor = min(twice)
            raise FormatError(f"the tensor {tensor!r:.200} is in two files", where=f"{tensors[tensor].file} and {path}")
        tensors.update(found)
        metadata.update(about)
    return tensors, metadata


def _compare(index: Path, wanted: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    """Index and shards must name the same tensors in the same files."""
    missing = [f"{name} ({file})" for name, file in wanted.items() if name not in tensors]
    if missing:
        raise FormatError(
            f"{len(missing)} tensors of the index are not in the files: {_listed(missing)}", where=str(index)
        )
    extra = [f"{name} ({info.file.name})" for name, info in tensors.items() if name not in wanted]
    if extra:
        raise FormatError(
            f"{len(extra)} tensors are in the files, but not in the index: {_listed(extra)}", where=str(index)
        )
    moved = [name for name, info in tensors.items() if info.file.name != wanted[name]]
    if moved:
        raise FormatError(
            f"{len(moved)} tensors are in another file than the index says: {_listed(moved)}", where=str(index)
        )
