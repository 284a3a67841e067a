"""Models that lie inside the installed package: no cache, no network, nothing to delete.

Knows where the package is, and the catalog's word for which file of it is a model.
"""

from __future__ import annotations

from pathlib import Path

from qwill.errors import ModelNotFoundError
from qwill.hub.catalog import CATALOG, CatalogEntry
from qwill.hub.names import LocalModel, ModelName

__all__ = ["SOURCE", "find", "included_models", "offers", "refusal"]

SOURCE = "package"
_PACKAGE = Path(__file__).resolve().parent.parent


def offers(name: ModelName) -> bool:
    """Whether the package holds what is asked for: one build of each such model, and no revisions."""
    entry = name.entry
    return entry is not None and entry.included is not None and not name.revision and name.quant == entry.quant


def find(name: ModelName) -> LocalModel | None:
    """The model, if it is one of the package's.

    Raises:
        ModelNotFoundError: it should be, and its file is gone.
    """
    entry = name.entry
    if entry is None or entry.included is None or not offers(name):
        return None
    return _model(entry, entry.included.file)


def included_models() -> list[LocalModel]:
    """Every model of the package, in the catalog's order."""
    return [_model(entry, entry.included.file) for entry in CATALOG.values() if entry.included]


def refusal(name: ModelName, source: str) -> ModelNotFoundError:
    """The error for a model of the package that is sought elsewhere, or another one that is sought in the package."""
    if source != SOURCE:
        return ModelNotFoundError(f"{name.text} is part of qwill, and not at {source}", hint="leave out the source")
    having = ", ".join(entry.name for entry in CATALOG.values() if entry.included)
    return ModelNotFoundError(f"{name.text} is not part of qwill", hint=f"part of it: {having}")


def _model(entry: CatalogEntry, file: str) -> LocalModel:
    path = _PACKAGE / file
    if not path.is_file():
        raise ModelNotFoundError(
            f"{entry.name} is part of qwill, but its file is gone", where=str(path), hint="install qwill again"
        )
    return LocalModel(entry.name, path, SOURCE, None)
