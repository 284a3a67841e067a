"""A model from a repository on a hub: find it here, say what is missing, fetch it. The same for every hub."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from qwill.errors import DownloadError, ModelNotFoundError
from qwill.hub.http import HttpClient
from qwill.hub.names import LocalModel, ModelName
from qwill.hub.progress import Progress
from qwill.hub.snapshots import Listing, RepoCache

__all__ = ["Hub", "fetch", "find", "missing"]


class Hub(Protocol):
    """What one hub's module provides: its name, where its cache is, and how to ask it for a listing."""

    SOURCE: str
    DEFAULT_REVISION: str

    def cache_folder(self) -> Path:
        """Where its repositories are kept."""

    def open_client(self, endpoint: str | None, repo: str, revision: str) -> HttpClient:
        """A client that explains refusals in terms of this repository."""

    def list_files(self, client: HttpClient, repo: str, revision: str, quant: str | None) -> Listing:
        """The files that are needed."""


def find(hub: Hub, name: ModelName) -> LocalModel | None:
    """The model, if all of it is here, whoever put it there. Uses no network."""
    repo = name.repo_on(hub.SOURCE)
    if repo is None:
        return None
    revision = name.revision or hub.DEFAULT_REVISION
    path = RepoCache(hub.cache_folder(), repo).find(revision, name.quant)
    return LocalModel(name.title, path, hub.SOURCE, revision) if path else None


def missing(hub: Hub, name: ModelName) -> list[str]:
    """The files that `find` did not find."""
    repo = name.repo_on(hub.SOURCE)
    if repo is None:
        return []
    return RepoCache(hub.cache_folder(), repo).missing(name.revision or hub.DEFAULT_REVISION, name.quant)


def fetch(hub: Hub, name: ModelName, *, endpoint: str | None, progress: Progress) -> LocalModel:
    """Download what is not here yet.

    Raises:
        ModelNotFoundError, AccessError, SourceUnreachableError, DownloadError, DiskSpaceError, IntegrityError:
            each says why and what to do.
    """
    repo = name.repo_on(hub.SOURCE)
    if repo is None:
        raise ModelNotFoundError(f"{name.text} is not published there")
    revision = name.revision or hub.DEFAULT_REVISION
    cache = RepoCache(hub.cache_folder(), repo)
    with hub.open_client(endpoint, repo, revision) as client:
        listing = hub.list_files(client, repo, revision, name.quant)
        cache.fetch(client, listing, revision=revision, label=name.title, progress=progress)
    found = find(hub, name)
    if found is None:
        lacking = ", ".join(missing(hub, name)[:5])
        raise DownloadError(f"{repo} is not a whole model", where=f"missing: {lacking}", hint="choose another source")
    return found
