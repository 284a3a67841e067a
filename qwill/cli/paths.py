"""The user's folders for configuration and state. Knows nothing of what is kept in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from qwill.errors import UsageError

__all__ = ["config_files", "make_folder", "state_folder"]


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


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    if sys.platform == "win32" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "qwill"
    root = environ.get(variable, "")
    return (Path(root) if os.path.isabs(root) else Path.home() / below_home) / "qwill"
