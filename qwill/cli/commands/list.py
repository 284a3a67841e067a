"""`qwill list`: the models on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import ReportFlags, flags_of
from qwill.cli.terminal import notice, print_json, print_table

if TYPE_CHECKING:
    from qwill.hub import LocalModel, StoredModel

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(ReportFlags)


def register(app: App) -> None:
    """Make `qwill list` of this app."""
    app.default(list_models)


def list_models(*, given: Flags | None = None) -> int:
    """List the models on this machine, those used last first; at the end those that are part of qwill."""
    from qwill import hub
    from qwill.hub.progress import format_bytes

    given = given or {}
    models, included = hub.list_models(), hub.included_models()
    if given.get("json"):
        print_json([*map(_record, models), *map(_included_record, included)], indent=1)
        return 0
    rows = [
        [model.name, format_bytes(model.bytes), model.source, model.last_used.astimezone().strftime("%Y-%m-%d %H:%M")]
        for model in models
    ]
    rows += [[model.name, format_bytes(model.path.stat().st_size), model.source, ""] for model in included]
    print_table(["model", "size", "source", "last used"], rows, sys.stdout)
    if not models and not given.get("quiet"):
        names = ", ".join(name for name, entry in hub.CATALOG.items() if not entry.included)
        notice(f"no model was downloaded yet; qwill pull gets one, for example of: {names}")
    return 0


def _record(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.source,
        "path": str(model.path),
        "bytes": model.bytes,
        "revision": model.revision,
        "last_used": model.last_used.isoformat(),
    }


def _included_record(model: LocalModel) -> dict[str, Any]:
    size = model.path.stat().st_size
    about = {"name": model.name, "source": model.source, "path": str(model.path), "bytes": size}
    return {**about, "revision": None, "last_used": None}
