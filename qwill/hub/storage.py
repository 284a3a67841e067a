"""Files on disk, safely: where models are kept, room for them, one writer at a time, and names that only appear
when what they name is whole. Knows nothing of hubs, repositories or formats.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qwill.errors import DiskSpaceError, DownloadError, SettingError
from qwill.hub.progress import Progress, format_bytes

__all__ = ["cache_root", "check_space", "disk_errors", "locked", "publish"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# A file stands where a folder is needed, or the other way round; or a folder went away as we worked.
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.ENOENT, errno.ELOOP}


def cache_root() -> Path:
    """Where models that do not come from Hugging Face are kept: $QWILL_HOME, or qwill in the user's cache folder.

    Raises:
        SettingError: the path begins with the home of a user that does not exist.
    """
    for variable, below in (("QWILL_HOME", ""), ("XDG_CACHE_HOME", "qwill")):
        if os.environ.get(variable):
            return _expanded(os.environ[variable], variable) / below
    return _expanded("~", "HOME") / ".cache" / "qwill"


def _expanded(text: str, variable: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        what = f"{variable}: there is no home folder for {text!r:.200}"
        raise SettingError(what, hint=f"set {variable} to a folder's full path") from None


def check_space(folder: Path, needed: int) -> None:
    """Refuse before the first byte is fetched when `needed` bytes do not fit into `folder`'s file system.

    Raises:
        DiskSpaceError: says what is needed, what is free and where.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DiskSpaceError(
            f"the download needs {format_bytes(needed)}, but only {format_bytes(free)} are free",
            where=str(folder),
            hint="free some space, or set HF_HOME (Hugging Face) or QWILL_HOME (other sources) to a larger disk",
        )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write at `path` into typed errors.

    Raises:
        DiskSpaceError: the disk is full; what was written stays, so that a later run can go on from it.
        DownloadError: no permission, a read-only file system, or something else stands at that path.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            hint = "free some space and run the same command again: it goes on where it stopped"
            raise DiskSpaceError("the disk became full during the download", where=str(path), hint=hint) from error
        if error.errno in _FORBIDDEN:
            hint = "set HF_HOME (Hugging Face) or QWILL_HOME (other sources) to a folder you may write to"
            raise DownloadError(f"cannot write here: {error.strerror}", where=str(path), hint=hint) from error
        if error.errno in _IN_THE_WAY:
            what = f"cannot keep a model here: {error.strerror}"
            hint = "a file stands where a folder is needed, or a folder where a file is: move it away, or set "
            hint += "HF_HOME (Hugging Face) or QWILL_HOME (other sources) to another folder"
            raise DownloadError(what, where=str(error.filename or path), hint=hint) from error
        raise


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file at `path`; waits, with a message, for as long as another process holds it."""
    from filelock import FileLock, Timeout

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o664)
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            progress.message("waiting: another process is downloading the same file")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def publish(partial: Path, final: Path) -> None:
    """Give a finished file its real name. After a power cut the name either is not there or names the whole file."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, final)
    if os.name == "posix":
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
