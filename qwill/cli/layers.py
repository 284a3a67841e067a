"""Where a value comes from when no flag gives it: QWILL_* variables, ./qwill.toml, the user's config file.

A key is a flag's name with underscores. The earlier layer wins; flags win over all, and the model's
generation_config.json and the built-in defaults come last. A config file is written by a person, so one that
cannot be read is an error and is never moved aside or half used. Knows no command.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from qwill.cli.flags import FLAG_OWNERS, NOT_ON_THE_COMMAND_LINE
from qwill.cli.paths import config_files
from qwill.errors import UsageError
from qwill.settings import settings_of, shown

__all__ = ["Layer", "known_keys", "read_layers"]

PREFIX = "QWILL_"
MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class Layer:
    """Values from one place: the environment (text) or one config file (typed)."""

    source: str
    values: dict[str, Any]


def known_keys() -> list[str]:
    """Every key that a config file may hold, in the order of the help pages."""
    keys = ["model", *(name for owner in FLAG_OWNERS for name in settings_of(owner))]
    return [key for key in dict.fromkeys(keys) if key not in NOT_ON_THE_COMMAND_LINE]


def read_layers(environ: Mapping[str, str] = os.environ, files: Sequence[Path] | None = None) -> list[Layer]:
    """The layers, the one that goes first at the front.

    Raises:
        UsageError: a config file cannot be read, is not valid TOML, is too large, or has an unknown key or a value
            of the wrong type.
    """
    keys = known_keys()
    variables = {key: environ[PREFIX + key.upper()] for key in keys if environ.get(PREFIX + key.upper())}
    paths = config_files(environ) if files is None else files
    return [Layer("environment", variables), *(_read_file(path, keys) for path in paths if _is_there(path))]


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UsageError(f"cannot read the config file: {error.strerror}", where=str(path)) from error


def _read_file(path: Path, keys: list[str]) -> Layer:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise UsageError("a config file may have 1 MiB at most", where=str(path))
        values = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the config file: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:  # of the text, of TOML, and of what Python cannot hold
        hint = "correct the file or move it away; a line is KEY = VALUE, for example temperature = 0.7"
        raise UsageError(f"the config file is not valid TOML: {error}", where=str(path), hint=hint) from error
    for key in values:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else "qwill doctor --config lists the keys"
            raise UsageError(f"unknown key {key[:100]!r}", where=str(path), hint=hint)
    return Layer(str(path), {key: _checked(path, key, value) for key, value in values.items()})


def _checked(path: Path, key: str, value: Any) -> Any:
    """The value as the parser takes it, if its TOML type is the setting's: the parser would bend or ignore others."""
    kind = _kind(key)
    if kind == "dict[int, float]" and isinstance(value, dict) and all(_is(each, "float") for each in value.values()):
        return [f"{name}={number}" for name, number in value.items()]
    if kind.startswith("tuple["):
        inner = kind.removeprefix("tuple[").partition(",")[0]
        if all(_is(each, inner) for each in (value if isinstance(value, list) else [value])):
            return value
    elif _is(value, kind):
        return value
    words = WORDS.get(kind, "a list")
    raise UsageError(f"{key} = {shown(value)} is not {words}", where=str(path), hint=f"write {key} = VALUE as {words}")


WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "tuple[int, ...]": "a list of whole numbers",
    "tuple[str, ...]": "a list of texts in quotes",
    "dict[int, float]": "a table of token ids and numbers",
}


def _kind(key: str) -> str:
    """The declared type of a setting, in words of Python, without `None`."""
    hints = next((get_type_hints(owner) for owner in FLAG_OWNERS if key in settings_of(owner)), {})
    kind = hints.get(key, str)
    return kind.__name__ if kind in (bool, int, float, str) else str(kind).removesuffix(" | None")


def _is(value: Any, kind: str) -> bool:
    """Whether a value from TOML is of this simple kind; a whole number may be text with a k, M or G."""
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    kinds: dict[str, tuple[type, ...]] = {"int": (int, str), "float": (int, float), "str": (str,)}
    return isinstance(value, kinds.get(kind, ()))
