"""Conversations on disk: one JSONL file each, one message a line, readable by the user alone.

A file that cannot be read as such is moved aside (NAME.jsonl.bad) and never overwritten. Knows no model.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from qwill.cli.conversation import Message
from qwill.cli.paths import make_folder
from qwill.errors import FormatError, UsageError

__all__ = ["load_session", "save_session", "session_names"]

MAX_SESSION_BYTES = 64 << 20
MAX_NAME_BYTES = 200
"""File systems take 255, and the name of the temporary file is longer."""
ROLES = ("system", "user", "assistant", "tool")


def session_names(folder: Path) -> list[str]:
    """Names of the saved conversations, the newest first."""
    changed = {}
    with contextlib.suppress(OSError):
        for file in folder.glob("*.jsonl"):
            with contextlib.suppress(OSError):  # a link that leads nowhere
                changed[file.stem] = file.stat().st_mtime
    return sorted(changed, key=lambda name: changed[name], reverse=True)


def save_session(folder: Path, name: str, messages: list[Message]) -> Path:
    """Write the messages, whole or not at all, in place of what had this name.

    Raises:
        UsageError: the name could be something other than a plain file name, or the folder cannot be written to.
    """
    path = _path(make_folder(folder), name)
    try:
        _write(path, messages)
    except OSError as error:
        raise UsageError(
            f"the conversation cannot be saved: {error.strerror}", where=str(path), hint="is the disk full?"
        ) from error
    return path


def _write(path: Path, messages: list[Message]) -> None:
    # A temporary file is made readable by its owner alone, and keeps that when it is renamed.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            for message in messages:
                file.write(json.dumps(message, ensure_ascii=False) + "\n")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_session(folder: Path, name: str) -> list[Message]:
    """The messages of a saved conversation.

    Raises:
        UsageError: there is none of this name.
        FormatError: the file is damaged, and has been moved aside, or it cannot be read.
    """
    path = _path(folder, name)
    try:
        return _load(path, name, folder)
    except OSError as error:
        raise FormatError(f"the saved conversation cannot be read: {error.strerror}", where=str(path)) from error


def _load(path: Path, name: str, folder: Path) -> list[Message]:
    if not path.is_file():
        known = ", ".join(session_names(folder)[:10])
        hint = f"saved: {known}" if known else "/save makes one"
        raise UsageError(f"no saved conversation {name!r}", hint=hint)
    try:
        if path.stat().st_size > MAX_SESSION_BYTES:
            raise ValueError("larger than 64 MiB")
        lines = path.read_text(encoding="utf-8").split("\n")
        return [_message(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    except (ValueError, RecursionError) as error:
        aside = path.with_name(path.name + ".bad")
        os.replace(path, aside)
        raise FormatError(
            f"the saved conversation {name!r} is damaged: {error}", where=str(path), hint=f"it is now {aside.name}"
        ) from error


def _message(number: int, line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON") from error
    if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
        raise ValueError(f"line {number} is not a message")
    # Half of a surrogate pair is no text, and no tokenizer takes it.
    content = message["content"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return {"role": message["role"], "content": content}


def _path(folder: Path, name: str) -> Path:
    if not re.fullmatch(r"[\w][\w.-]{0,63}", name) or len(os.fsencode(name)) > MAX_NAME_BYTES:
        hint = "at most 64 letters, digits, . _ - of together 200 bytes"
        raise UsageError(f"{name[:100]!r} cannot be the name of a conversation", hint=hint)
    return folder / f"{name}.jsonl"
