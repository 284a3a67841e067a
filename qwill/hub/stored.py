"""What is on this machine: listing the models of every source, and deleting one of them.

Uses no network. In the Hugging Face cache only models of a kind that qwill runs are listed, and only the one that
is named is deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from qwill.config import load_config
from qwill.errors import ModelNotFoundError, QwillError, UsageError
from qwill.hub import huggingface, included, modelscope, pypi
from qwill.hub.catalog import CATALOG
from qwill.hub.files import gguf_type
from qwill.hub.names import ModelName, nearest, parse_name
from qwill.hub.repos import Hub
from qwill.hub.snapshots import RepoCache, gguf_names, lacking, repositories
from qwill.hub.storage import disk_errors

__all__ = ["StoredModel", "list_models", "remove"]

# What reading a damaged model can end in: it is not listed, and the others are.
_UNREADABLE = (QwillError, OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class StoredModel:
    """One model that is here. `name` can be given to every command; `bytes` is what it takes on the disk."""

    name: str
    source: str
    path: Path
    bytes: int
    revision: str | None
    last_used: datetime


def list_models() -> list[StoredModel]:
    """Every model that was downloaded to this machine and that qwill can run, those used last first."""
    stored = [*_from_pypi(), *(model for hub in _hubs() for model in _from_hub(hub))]
    return sorted(stored, key=lambda model: model.last_used, reverse=True)


def remove(name: str, *, source: str = "auto") -> int:
    """Delete one model, from every source that it was stored from or from the one given; also half a download of it.

    Returns the bytes that are free again.

    Raises:
        ModelNotFoundError: nothing of that name is here; suggests near names.
        UsageError: a path of the user's own, a model of the package, or a repository with several GGUF files of which
            none was named.
    """
    here = [model for model in list_models() if source in ("auto", model.source)]
    wanted = parse_name(name, known=[model.name for model in here])
    if wanted.path is not None:
        raise UsageError("qwill deletes only what it downloaded itself", where=name, hint="delete these files yourself")
    if included.offers(wanted):
        raise UsageError(f"{name} is part of qwill and takes no room of its own", hint="it goes when qwill goes")
    freed = 0
    if source in ("auto", pypi.SOURCE) and wanted.entry and pypi.offers(wanted):
        freed += _delete_folder(pypi.folder_of(wanted.entry))
    for hub in _hubs():
        repo = wanted.repo_on(hub.SOURCE)
        if repo and source in ("auto", hub.SOURCE):
            freed += _remove_from(hub, RepoCache(hub.cache_folder(), repo), wanted, here)
    if not freed:
        known = [model.name for model in here]
        near = nearest(name, known) or known[:5]
        hint = "here is: " + ", ".join(near) if near else "no model is stored here"
        raise ModelNotFoundError(f"{name} is not on this machine", hint=hint)
    return freed


def _hubs() -> tuple[Hub, ...]:
    return huggingface, modelscope


def _from_hub(hub: Hub) -> Iterator[StoredModel]:
    for cache in repositories(hub.cache_folder()):
        for snapshot, revisions in cache.snapshots():
            main = hub.DEFAULT_REVISION in revisions
            revision = hub.DEFAULT_REVISION if main else next(iter(revisions), snapshot.name)
            for path in _models_in(snapshot):
                quant = gguf_type(path.name) if path.suffix == ".gguf" else None
                name = _typed_name(hub.SOURCE, cache.repo, quant, "" if main else revision)
                model = None
                with suppress(*_UNREADABLE):
                    model = _stored(name, hub.SOURCE, path, revision)
                if model:
                    yield model


def _from_pypi() -> Iterator[StoredModel]:
    for entry in CATALOG.values():
        found = pypi.find(parse_name(entry.name))
        if found:
            yield _stored(entry.name, pypi.SOURCE, found.path, None)


def _models_in(snapshot: Path) -> list[Path]:
    """The folder itself, if it holds a model of a kind that we run, and each GGUF file in it."""
    models: list[Path] = []
    with suppress(*_UNREADABLE):
        models += [snapshot / name for name in gguf_names(snapshot)]
        if not lacking(snapshot):
            load_config(snapshot)
            models.append(snapshot)
    return models


def _typed_name(source: str, repo: str, quant: str | None, revision: str) -> str:
    """The shortest name that leads back to a stored model."""
    for entry in CATALOG.values():
        if not revision and entry.repos.get(source) == repo and entry.quant == quant:
            return entry.name
    return repo + (f"@{revision}" if revision else "") + (f":{quant}" if quant else "")


def _stored(name: str, source: str, path: Path, revision: str | None) -> StoredModel:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    used = max(max(stat.st_atime, stat.st_mtime) for stat in stats)
    size = sum(stat.st_size for stat in stats)
    return StoredModel(name, source, path, size, revision, datetime.fromtimestamp(used, UTC))


def _remove_from(hub: Hub, cache: RepoCache, wanted: ModelName, here: list[StoredModel]) -> int:
    """Delete the one model of a repository that a name stands for; if there is none, what a broken-off pull left."""
    stored = [model for model in here if cache.folder in model.path.parents]
    revision = wanted.revision or hub.DEFAULT_REVISION
    fitting = [m for m in stored if revision in (m.revision, _snapshot(cache, m.path).name)]
    if wanted.quant:
        fitting = [m for m in fitting if m.path.is_file() and gguf_type(m.path.name) == wanted.quant.upper()]
    elif not wanted.revision:
        fitting = fitting or stored  # "org/name" where only other revisions are here
    folders = [m for m in fitting if m.path.is_dir()]
    if len(fitting) > 1 and len(folders) != 1:
        names = ", ".join(m.name for m in fitting)
        raise UsageError(f"{wanted.text} stands for {len(fitting)} models here", hint=f"name one of: {names}")
    if fitting:
        return _delete(cache, (folders or fitting)[0].path)
    return 0 if stored else _delete_folder(cache.folder)


def _snapshot(cache: RepoCache, path: Path) -> Path:
    snapshots = cache.folder / "snapshots"
    return snapshots / path.relative_to(snapshots).parts[0]


def _delete(cache: RepoCache, path: Path) -> int:
    """Delete a snapshot, or one of several GGUF files in it, with the bytes that nothing else refers to."""
    snapshot = _snapshot(cache, path)
    if path.is_file() and len(gguf_names(snapshot)) > 1:
        return _delete_one_file(cache, path)
    from huggingface_hub import scan_cache_dir

    strategy = scan_cache_dir(cache.root).delete_revisions(snapshot.name)
    with disk_errors(cache.folder):
        strategy.execute()
    return int(strategy.expected_freed_size)


def _delete_one_file(cache: RepoCache, pointer: Path) -> int:
    target = pointer.resolve()
    size = target.stat().st_size
    with disk_errors(pointer):
        pointer.unlink()
        if target.parent == (cache.folder / "blobs").resolve():
            if any(other.resolve() == target for other in (cache.folder / "snapshots").rglob("*")):
                return 0
            target.unlink()
    return size


def _delete_folder(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    size = sum(file.lstat().st_size for file in folder.rglob("*"))
    with disk_errors(folder):
        shutil.rmtree(folder)
    return size
