"""The user's folders for configuration and state, and files that a command is to write. Knows no contents."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from qwill.errors import UsageError

__all__ = ["check_may_write", "config_files", "make_folder", "state_folder"]

LONGEST_NAME = 255
"""Bytes in the name of a file or folder, on every common file system."""


def config_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The config files, the one that goes first at the front; they need not exist."""
    return [Path("qwill.toml"), _folder(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"]


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where typed history and saved conversations are kept; it need not exist."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state")


def make_folder(folder: Path) -> Path:
    """Make a folder that the user alone can read, unless it is there.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder cannot be made: {error.strerror}",
            where=str(folder),
            hint="set XDG_STATE_HOME to a folder that can be written to",
        ) from error
    return folder


def check_may_write(*names: str | None) -> None:
    """Refuse files that cannot be written, so that nothing slow is done in vain; None stands for no file.

    Raises:
        UsageError: names the file.
    """
    for name in names:
        if name and not _may_write(Path(name).absolute()):
            raise UsageError(f"cannot write {name!r:.100}", hint="name a file in a folder that can be written to")


def _may_write(file: Path) -> bool:
    """Whether a file can be made here, with the folders that are missing above it, in place of nothing but a file."""
    if "\0" in str(file) or any(len(os.fsencode(part)) > LONGEST_NAME for part in file.parts):
        return False
    file = Path(os.path.realpath(file))
    above = next(folder for folder in file.parents if folder.exists())
    return (file.is_file() or not file.exists()) and above.is_dir() and os.access(above, os.W_OK)


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    if sys.platform == "win32" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "qwill"
    root = environ.get(variable, "")
    return (Path(root) if os.path.isabs(root) else Path.home() / below_home) / "qwill"
