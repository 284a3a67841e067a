"""A file that is whole or not there: it gets its name when all of it is written. Knows no contents."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A name to write a file under; it becomes `path` when all went well, and else is deleted. Makes missing folders.

    Through a link, the file that it leads to is replaced, and the link stays.

    Raises:
        OSError: the file cannot be written, or is a folder, a pipe or a device, which a file must not replace; what
            was there before is still there.
    """
    path = _checked(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _checked(path: str | Path) -> Path:
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a file's name cannot hold a NUL", str(path))
    found = Path(os.path.realpath(path))
    if os.path.lexists(found) and not found.is_file():
        raise OSError(errno.EINVAL, "there is something that is no file", str(path))
    return found
