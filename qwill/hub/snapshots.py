"""Repositories on disk, in the layout of the Hugging Face cache: shared with every other program that uses it.

    models--org--name/
        blobs/<etag>                     the bytes, named by their content
        snapshots/<commit>/<file>        links to them: what the model's folder looks like at that commit
        refs/<revision>                  a text file with the commit that a branch or tag stands for

Knows no hub: it is told what to fetch and from where.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwill.errors import QwillError
from qwill.hub.files import RemoteFile, gguf_file, missing_files
from qwill.hub.http import HttpClient
from qwill.hub.progress import Progress
from qwill.hub.storage import check_space, disk_errors
from qwill.hub.transfer import download, partial_size, sweep

__all__ = ["COMMIT", "Listing", "RepoCache", "repositories"]

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Listing:
    """What is to be fetched of a repository: its files at one commit, side files first, weights last."""

    commit: str
    files: Sequence[RemoteFile]


@dataclass(frozen=True)
class RepoCache:
    """One repository's folder below the cache folder `root`."""

    root: Path
    repo: str

    @property
    def folder(self) -> Path:
        """Where everything of the repository is."""
        return self.root / ("models--" + self.repo.replace("/", "--"))

    def snapshot(self, revision: str) -> Path | None:
        """The folder that a branch, tag or commit stands for, if anything of it is here."""
        commit = revision if COMMIT.fullmatch(revision) else _commit_in(self.folder / "refs" / revision)
        snapshot = self.folder / "snapshots" / commit
        return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None

    def snapshots(self) -> list[tuple[Path, list[str]]]:
        """Every snapshot with the revisions that point at it."""
        refs: dict[str, list[str]] = {}
        for ref in sorted((self.folder / "refs").rglob("*")):
            refs.setdefault(_commit_in(ref), []).append(ref.relative_to(self.folder / "refs").as_posix())
        folders = sorted(p for p in (self.folder / "snapshots").glob("*") if p.is_dir())
        return [(folder, refs.get(folder.name, [])) for folder in folders]

    def find(self, revision: str, quant: str | None) -> Path | None:
        """The whole model at a revision: the snapshot's folder, or the GGUF file of type `quant` in it."""
        snapshot = self.snapshot(revision)
        if snapshot is None:
            return None
        if quant is None and not lacking(snapshot):
            return snapshot
        try:
            return snapshot / gguf_file(gguf_names(snapshot), quant, self.repo)
        except QwillError:
            return None

    def missing(self, revision: str, quant: str | None) -> list[str]:
        """What a run without network lacks, for the error text."""
        folders = [folder for folder, _ in self.snapshots()]
        snapshot = self.snapshot(revision) or (folders[-1] if folders else None)
        if quant:
            return [f"the GGUF file of type {quant}"]
        return lacking(snapshot) if snapshot else ["all of its files"]

    def fetch(self, client: HttpClient, listing: Listing, *, revision: str, label: str, progress: Progress) -> Path:
        """Download what is not here yet of a listing; returns the snapshot's folder.

        Raises:
            DiskSpaceError: before the first byte, when it cannot fit.
            QwillError: as `download` does.
        """
        snapshot = self.folder / "snapshots" / listing.commit
        with disk_errors(self.folder):
            if not all((snapshot / file.name).exists() for file in listing.files):
                self._fetch(client, listing.files, snapshot, label, progress)
            else:
                progress.message(f"{label} is up to date")
            self._point(revision, listing.commit)
        return snapshot

    def _fetch(
        self, client: HttpClient, files: Sequence[RemoteFile], snapshot: Path, label: str, progress: Progress
    ) -> None:
        here = {file: (snapshot / file.name).exists() for file in files}
        parts = {file: file.size if here[file] else partial_size(self._blob(file), file) for file in files}
        total = sum(file.size for file in files)
        check_space(self.folder, total - sum(parts.values()))
        progress.start(total, label, sum(parts.values()))
        try:
            for file in (file for file in files if not here[file]):
                # The lock file is huggingface_hub's: it waits for us, too, and we for it.
                lock = self.root / ".locks" / self.folder.name / f"{file.etag}.lock"
                download(client, file, self._blob(file), lock=lock, progress=progress, told=parts[file])
                _link(self._blob(file), snapshot / file.name)
        finally:
            progress.finish()
        sweep(self.folder / "blobs")

    def _blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.etag

    def _point(self, revision: str, commit: str) -> None:
        """Last of all: until now the revision stood for the older, whole snapshot."""
        if COMMIT.fullmatch(revision):
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary = ref.with_name(f"{ref.name}.{uuid.uuid4().hex[:8]}.tmp")
        temporary.write_text(commit)
        os.replace(temporary, ref)


def repositories(root: Path) -> Iterator[RepoCache]:
    """Every model repository below a cache folder."""
    for folder in sorted(root.glob("models--?*--?*")):
        yield RepoCache(root, folder.name.removeprefix("models--").replace("--", "/", 1))


def _commit_in(ref: Path) -> str:
    """The commit that a file of refs/ holds; empty when it holds anything else, or cannot be read."""
    try:
        text = ref.read_text("utf-8", errors="replace").strip() if ref.is_file() else ""
    except OSError:
        return ""
    return text if COMMIT.fullmatch(text) else ""


def gguf_names(snapshot: Path) -> list[str]:
    """The GGUF files of a snapshot, by their names in the repository."""
    return sorted(file.relative_to(snapshot).as_posix() for file in snapshot.rglob("*.gguf") if file.exists())


def lacking(snapshot: Path) -> list[str]:
    """What a snapshot lacks to be a whole safetensors model, tokenizer included."""
    try:
        missing = missing_files(snapshot)
    except QwillError:
        return ["readable weights"]
    tokenizer = (snapshot / "tokenizer.json").exists()
    vocabulary = (snapshot / "vocab.json").exists() and (snapshot / "merges.txt").exists()
    return missing if tokenizer or vocabulary else [*missing, "tokenizer.json"]


def _link(blob: Path, pointer: Path) -> None:
    """Make `pointer` a relative link to the blob; where links are not possible, move the file there."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    temporary = pointer.with_name(f".{uuid.uuid4().hex}")
    try:
        os.symlink(os.path.relpath(blob, pointer.parent), temporary)
    except (OSError, NotImplementedError):
        if not blob.exists():
            raise
        os.replace(blob, pointer)
        return
    os.replace(temporary, pointer)
