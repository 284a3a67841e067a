"""What a user types for a model, and what it stands for.

    qwen3-0.6b                         an entry of the catalog
    org/name   org/name@revision       a repository on a hub
    org/name:Q4_K_M                    the GGUF file of that type in a repository
    ./folder   model.gguf              files that are here already

Knows the catalog and the file system's answer to "is this a folder"; knows no network and no cache.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qwill.errors import ModelNotFoundError, UsageError
from qwill.hub.catalog import CATALOG, CatalogEntry

__all__ = ["LocalModel", "ModelName", "nearest", "parse_name"]

_REPO_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_REPO_PART}/{_REPO_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){0,4}")
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{1,15}")


@dataclass(frozen=True)
class LocalModel:
    """A model that is on this machine: a folder with config.json and weights, or one .gguf file."""

    name: str
    path: Path
    source: str
    revision: str | None


@dataclass(frozen=True)
class ModelName:
    """A name, understood. Either `path` is set (files of the user), or the rest says what to look for on the hubs."""

    text: str
    path: Path | None = None
    entry: CatalogEntry | None = None
    repo: str | None = None
    revision: str | None = None
    quant: str | None = None

    @property
    def title(self) -> str:
        """What to call the model: the catalog's name, or what was typed."""
        return self.entry.name if self.entry and self.quant == self.entry.quant else self.text

    def repo_on(self, hub: str) -> str | None:
        """The repository's id on a hub, or None where that hub does not have it."""
        return self.entry.repos.get(hub) if self.entry else self.repo


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """The known names that look most like `name`, best first; letter case does not matter."""
    by_lower = {word.lower(): word for word in known}
    return [by_lower[word] for word in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.5)]


def parse_name(text: str, *, revision: str | None = None, known: Iterable[str] = ()) -> ModelName:
    """Understand what was typed; `revision` is the one given apart from the name; `known` are more names to suggest.

    Raises:
        ModelNotFoundError: neither a path, nor a catalog entry, nor of the form org/name; suggests near ones.
        UsageError: a malformed revision or type, or two revisions that differ.
    """
    if not text.strip() or "\0" in text:
        raise UsageError("the model's name is empty or holds a NUL", hint="try one of: " + ", ".join(CATALOG))
    if _is_path(text):
        return ModelName(text, path=Path(os.path.expanduser(text)))
    base, typed_revision, quant = _split(text)
    entry = CATALOG.get(base.lower())
    if not entry and (not _REPO.fullmatch(base) or "--" in base or ".." in base):
        raise ModelNotFoundError(f"there is no model {text!r:.200}", hint=_suggestion(text, known))
    if revision and typed_revision and revision != typed_revision:
        raise UsageError(f"two revisions for one model: {typed_revision!r} and {revision!r}")
    revision = _checked(revision or typed_revision, _REVISION, "revision", "a branch, a tag or a commit")
    quant = _checked(quant, _QUANT, "GGUF type", "for example Q4_K_M or Q8_0")
    if entry:
        return ModelName(text, entry=entry, revision=revision, quant=quant or entry.quant)
    return ModelName(text, repo=base, revision=revision, quant=quant)


def _is_path(text: str) -> bool:
    if text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or text in (".", ".."):
        return True
    if text.lower().endswith(".gguf") or "\\" in text:
        return True
    return os.path.isdir(text) and (os.path.isfile(os.path.join(text, "config.json")) or any(Path(text).glob("*.gguf")))


def _split(text: str) -> tuple[str, str | None, str | None]:
    """Cut `@revision` and `:TYPE` off the end, in either order."""
    parts = re.split(r"([@:])", text)
    marks: dict[str, str] = {}
    for mark, value in zip(parts[1::2], parts[2::2], strict=True):
        if mark in marks:
            raise UsageError(f"{text!r:.200} has two {mark!r}", hint="org/name, org/name@revision or org/name:Q4_K_M")
        marks[mark] = value
    return parts[0], marks.get("@"), marks.get(":")


def _checked(value: str | None, pattern: re.Pattern[str], what: str, allowed: str) -> str | None:
    if value is None or (pattern.fullmatch(value) and ".." not in value):
        return value
    raise UsageError(f"{value!r:.200} is not a {what}", hint=allowed)


def _suggestion(text: str, known: Iterable[str]) -> str:
    near = nearest(text, [*CATALOG, *known])
    start = "did you mean " + ", ".join(near) if near else "the catalog has " + ", ".join(CATALOG)
    return f"{start}? Or give org/name of a repository, a folder, or a .gguf file"
