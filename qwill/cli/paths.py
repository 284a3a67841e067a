"""The user's folders for configuration and state. Knows nothing of what is kept in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["config_files", "state_folder"]


def config_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The config files, the one that goes first at the front; they need not exist."""
    return [Path("qwill.toml"), _folder(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"]


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where typed history and saved conversations are kept: readable by the user alone. Made when missing."""
    folder = _folder(environ, "XDG_STATE_HOME", ".local/state")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    if sys.platform == "win32" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "qwill"
    root = environ.get(variable, "")
    return (Path(root) if os.path.isabs(root) else Path.home() / below_home) / "qwill"
