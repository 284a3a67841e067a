"""Which files of a repository qwill needs, which of their names can be trusted, and which are missing from a folder.

Everything else in a repository (pickles, Python, other frameworks' weights) is never fetched and never opened.
Knows no network and no cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwill.errors import FormatError, IntegrityError, ModelNotFoundError, UnsupportedModelError

__all__ = ["RemoteFile", "check_file_names", "gguf_file", "gguf_type", "missing_files", "wanted_files"]

_SIDE_FILES = (
    "LICENSE",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "tokenizer.json",
)
_VOCABULARY = ("vocab.json", "merges.txt")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_GGUF_TYPE = re.compile(r"(?:^|[-._])((?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)[A-Z0-9_]*)(?=$|[-.])", re.IGNORECASE)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository as its hub describes it: what must arrive, and from where.

    `etag` names the content: 64 hex digits are the sha256 of the bytes, 40 are git's sha1 of a blob. `size` in bytes.
    """

    name: str
    size: int
    etag: str
    url: str

    def __post_init__(self) -> None:
        check_file_names([self.name])


def check_file_names(names: Iterable[str]) -> None:
    """Refuse a listing that names anything outside its repository's folder.

    Raises:
        IntegrityError: an absolute name, "..", a backslash, a control character, or a part longer than 255 bytes.
    """
    for name in names:
        parts = name.split("/")
        bad = any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts)
        if bad or re.search(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:", name):
            raise IntegrityError(
                "the repository lists a file name that could leave its folder",
                where=f"{name!r:.120}",
                hint="do not use this repository; tell the hub about it",
            )


def wanted_files(names: Sequence[str], quant: str | None, repo: str) -> list[str]:
    """The names to fetch, side files first and weights last, so that whole weights mean a whole model.

    `quant` asks for one GGUF file; without it, safetensors are preferred and a lone GGUF file is taken.

    Raises:
        ModelNotFoundError: no such GGUF file, several to choose from, or no weights at all.
        UnsupportedModelError: weights only as pickles, or a GGUF cut into parts.
    """
    here = set(names)
    weights = [_SINGLE] if _SINGLE in here else sorted(filter(_SHARD.fullmatch, here)) if _INDEX in here else []
    ggufs = sorted(name for name in here if name.lower().endswith(".gguf"))
    if quant or (ggufs and not weights):
        return [*({"LICENSE"} & here), gguf_file(ggufs, quant, repo)]
    if not weights:
        _refuse_pickles(names, repo)
        raise ModelNotFoundError(
            f"{repo} holds no weights that qwill can read", hint="it needs *.safetensors or *.gguf"
        )
    if "config.json" not in here:
        raise ModelNotFoundError(f"{repo} has no config.json", hint="is it a whole model, or only an adapter?")
    side = [name for name in _SIDE_FILES if name in here]
    if "tokenizer.json" not in here:
        side += [name for name in _VOCABULARY if name in here]
    return side + ([_INDEX] if weights != [_SINGLE] else []) + weights


def gguf_type(name: str) -> str | None:
    """The quantization type in a GGUF file's name, in capitals: "qwen3-0.6b-q4_k_m.gguf" -> "Q4_K_M"."""
    stem = _SPLIT.sub("", Path(name).name[: -len(".gguf")])
    found = _GGUF_TYPE.findall(stem)
    return found[-1].upper() if found else None


def gguf_file(ggufs: Sequence[str], quant: str | None, repo: str) -> str:
    """The one GGUF file of type `quant` (letter case does not matter), or the only one when `quant` is None.

    Raises:
        ModelNotFoundError: none or several fit; lists what is there.
        UnsupportedModelError: the file is cut into parts.
    """
    fitting = [name for name in ggufs if quant is None or gguf_type(name) == quant.upper()]
    if any(_SPLIT.search(Path(name).stem) for name in fitting):
        raise UnsupportedModelError(
            f"{quant or 'the GGUF'} in {repo} is cut into {len(fitting)} parts", hint="choose a type that is one file"
        )
    if len(fitting) == 1:
        return fitting[0]
    types = sorted({gguf_type(name) or name for name in ggufs})
    what = f"{repo} has no GGUF of type {quant}" if quant else f"{repo} has {len(ggufs)} GGUF files"
    if len(fitting) > 1 and quant:
        what = f"{repo} has {len(fitting)} GGUF files of type {quant}"
    listed = ", ".join(types[:40]) or "no GGUF file at all"
    raise ModelNotFoundError(what, where=f"there is: {listed}", hint=f"name one type, as in {repo}:Q4_K_M")


def missing_files(folder: Path) -> list[str]:
    """What a folder of safetensors lacks to be run: names of files; empty when all are there.

    Raises:
        UnsupportedModelError: the weights are there only as pickles.
        FormatError: the index of the shards is not what it should be.
    """
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if (folder / _SINGLE).is_file():
        return missing
    if (folder / _INDEX).is_file():
        return missing + [name for name in _shards(folder / _INDEX) if not (folder / name).exists()]
    if not missing:
        _refuse_pickles([file.name for file in folder.iterdir()], str(folder))
    return [*missing, _SINGLE]


def _shards(index: Path) -> list[str]:
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise FormatError(f"the index of the shards is larger than {_MAX_INDEX_BYTES} bytes", where=str(index))
    try:
        names = sorted({str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError("the index of the shards has no weight_map", where=str(index)) from error
    check_file_names(names)
    return names


def _refuse_pickles(names: Iterable[str], repo: str) -> None:
    pickles = sorted(name for name in names if name.lower().endswith(_PICKLES))
    if pickles:
        raise UnsupportedModelError(
            f"{repo} has its weights only as pickle ({pickles[0]}), which can run code; qwill never opens these",
            hint="convert them to safetensors (the hub's convert space does it), or take a repository that has them",
        )
