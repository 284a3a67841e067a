"""An evaluation text: a file that must be plain UTF-8 text. Torch-free; knows no tokens.

Ends of lines are kept as they are: what is evaluated is the file, not what an editor makes of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from qwill.errors import UsageError

__all__ = ["EvalText", "read_text"]

MAX_BYTES = 64 << 20
OTHER_FILE = "give another file, in plain UTF-8 text"


@dataclass(frozen=True)
class EvalText:
    """A text and what a reader needs to have the same one."""

    name: str
    """The file's name, without its folders."""
    sha256: str
    """Of the file's bytes."""
    text: str


def read_text(path: Path) -> EvalText:
    """The text of a file of at most 64 MiB.

    Raises:
        UsageError: the file cannot be read, is too large, is not UTF-8 text, or holds nothing but spaces.
    """
    data = _read(path)
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the text has more than {MAX_BYTES >> 20} MiB", where=str(path), hint="cut off what is enough"
        )
    zero = data.find(b"\0")
    if zero >= 0:
        raise UsageError("this is a binary file, not a text", where=f"{path}, byte {zero}", hint=OTHER_FILE)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "convert it: iconv -f ENCODING -t UTF-8"
        raise UsageError("the text is not UTF-8", where=f"{path}, byte {error.start}", hint=hint) from error
    if not text.strip():
        raise UsageError("the text is empty", where=str(path), hint=OTHER_FILE)
    return EvalText(path.name, hashlib.sha256(data).hexdigest(), text)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the text cannot be read: {reason}", where=str(path), hint="--text takes a file") from error
