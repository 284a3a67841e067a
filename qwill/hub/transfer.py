"""One file over HTTP, so that it ends up whole or not at all.

The bytes go to a partial file under the name of their content. A later run, also after kill -9, goes on where this
one stopped. Size and hash are checked before the file gets its real name; one process at a time writes it.
Knows nothing of repositories and of where files belong.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from qwill.errors import DownloadError, IntegrityError, QwillError
from qwill.hub.files import RemoteFile
from qwill.hub.http import HttpClient, TransientError
from qwill.hub.progress import Progress
from qwill.hub.storage import disk_errors, locked, publish

if TYPE_CHECKING:
    import httpx2

__all__ = ["download", "partial_of", "partial_size", "sweep"]

_CHUNK = 1 << 20
_MAX_FAILURES = 6
_FIRST_WAIT_SECONDS = 0.5
_ENOUGH_PROGRESS = 1 << 20
_STALE_SECONDS = 7 * 24 * 3600
_CONTENT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SUFFIX = ".qwill.incomplete"


def partial_of(final: Path) -> Path:
    """Where the bytes of an unfinished download are; huggingface_hub's own clean-up recognises the name."""
    return final.with_name(final.name + _SUFFIX)


def partial_size(final: Path, file: RemoteFile) -> int:
    """Bytes of a file that an earlier run left (all of them when it is finished)."""
    if final.exists():
        return file.size
    partial = partial_of(final)
    return min(partial.stat().st_size, file.size) if partial.exists() else 0


def sweep(folder: Path) -> None:
    """Delete partial files that nobody has written to for a week: their download was given up."""
    for partial in folder.glob("*" + _SUFFIX):
        if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
            partial.unlink()


def download(client: HttpClient, file: RemoteFile, final: Path, *, lock: Path, progress: Progress, told: int) -> None:
    """Bring `file` to `final`, unless it is there or another process brings it first.

    `told` bytes of it were counted as done when the progress began.

    Raises:
        IntegrityError: what arrives has another size or hash than was promised; it is deleted.
        DiskSpaceError: the disk is full; what arrived stays for the next run.
        DownloadError, AccessError, ModelNotFoundError: the server refuses, or the connection is lost for good.
    """
    meter = _Meter(progress, file.name, told)
    with disk_errors(final), locked(lock, progress):
        final.parent.mkdir(parents=True, exist_ok=True)
        if not final.exists():
            _download_locked(client, file, final, meter)
        meter.reach(file.size)


def _download_locked(client: HttpClient, file: RemoteFile, final: Path, meter: _Meter) -> None:
    partial = partial_of(final)
    for last in (False, True):
        with _Partial(partial, file) as body:
            inherited = body.size
            meter.reach(body.size)
            _receive_all(client, file, body, meter)
            found = body.digest()
        if found == file.etag:
            publish(partial, final)
            return
        partial.unlink()
        meter.reach(0)
        if last or not inherited:  # bytes from an earlier run get one more chance, from the start
            raise IntegrityError(
                f"{file.name} arrived with another content than {client.host} promises; it was deleted",
                where=f"promised {file.etag}, arrived {found}",
                hint="run again; if it stays, choose another source or endpoint",
            )


class _Meter:
    """Tells progress in absolute positions within one file, so that going back is as simple as going on."""

    def __init__(self, progress: Progress, name: str, position: int) -> None:
        self._progress, self._name, self._position = progress, name, position

    def reach(self, position: int) -> None:
        self._progress.advance(position - self._position, self._name)
        self._position = position

    def say(self, text: str) -> None:
        self._progress.message(text)


class _Partial:
    """The partial file with the running hash of what it holds. A context manager."""

    def __init__(self, path: Path, file: RemoteFile) -> None:
        self._wanted = file
        self._file = path.open("a+b", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)
        self.restart(keep=self.size <= file.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def restart(self, *, keep: bool = False) -> None:
        """Start the hash again, over what is there (`keep`) or over nothing."""
        git = len(self._wanted.etag) == 40
        self._hash = hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
        if git:  # git's blob id: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
            self._hash.update(b"blob %d\0" % self._wanted.size)
        if not keep:
            self._file.truncate(0)
        self._file.seek(0)
        self.size = 0
        while chunk := self._file.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)

    def append(self, chunk: bytes) -> None:
        """Write, then count: after an error the hash covers exactly the bytes that are in the file."""
        view = memoryview(chunk)
        while view:
            written = self._file.write(view)
            self._hash.update(view[:written])
            self.size += written
            view = view[written:]

    def digest(self) -> str:
        return self._hash.hexdigest()


def _receive_all(client: HttpClient, file: RemoteFile, body: _Partial, meter: _Meter) -> None:
    """Ask until the body is whole; gives up after a few attempts in a row that brought (almost) nothing."""
    failures = 0
    while body.size < file.size:
        before, wait = body.size, None
        try:
            _receive(client, file, body, meter)
            error: QwillError = DownloadError(
                f"{client.host} ended {file.name} after {body.size} of {file.size} bytes",
                hint="run the same command again: it goes on where it stopped",
            )
        except TransientError as transient:
            error, wait = transient.error, transient.wait_seconds
        if body.size == file.size:
            return
        failures = 0 if body.size - before >= _ENOUGH_PROGRESS else failures + 1
        if failures == _MAX_FAILURES:
            raise error
        wait = max(wait or 0.0, _FIRST_WAIT_SECONDS * 2 ** max(failures - 1, 0))
        if failures > 1:
            meter.say(f"{error.what}; trying again in {wait:.0f} s")
        time.sleep(wait)


def _receive(client: HttpClient, file: RemoteFile, body: _Partial, meter: _Meter) -> None:
    """One request: append what comes, from where the body ends."""
    headers = {"Range": f"bytes={body.size}-"} if body.size else {}
    with client.stream(file.url, headers) as response:
        _check_promise(client, file, response)
        if not _continues(response, body.size, file.size):
            body.restart()
            meter.reach(0)
            if response.status_code != 200:  # not the range we asked for: ask again, for the whole
                return
        for chunk in response.iter_raw():  # as they come: a chunk size would hold bytes back, and lose them on an error
            if body.size + len(chunk) > file.size:
                body.restart()
                raise IntegrityError(f"{client.host} sends more than the {file.size} bytes of {file.name}")
            body.append(chunk)
            meter.reach(body.size)


def _continues(response: httpx2.Response, start: int, total: int) -> bool:
    """Whether the answer goes on from byte `start` of a file of `total` bytes."""
    if response.status_code == 206:
        return response.headers.get("Content-Range", "").strip() == f"bytes {start}-{total - 1}/{total}"
    return response.status_code == 200 and start == 0


def _check_promise(client: HttpClient, file: RemoteFile, response: httpx2.Response) -> None:
    """Notice before the first byte that this is not the file of the listing."""
    first = (response.history or [response])[0].headers
    etag = first.get("X-Linked-Etag", first.get("ETag", "")).removeprefix("W/").strip('"')
    if "X-Repo-Commit" in first and _CONTENT.fullmatch(etag) and etag != file.etag:
        raise IntegrityError(
            f"{file.name} changed on {client.host} since it was listed",
            where=f"listed {file.etag}, now {etag:.100}",
            hint="run again",
        )
    length = response.headers.get("Content-Length", "")
    if response.status_code == 200 and length.isdecimal() and int(length) != file.size:
        raise IntegrityError(
            f"{client.host} has {length} bytes of {file.name}, but lists {file.size}", hint="run again"
        )
