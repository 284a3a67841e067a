"""`qwill list`: the models on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import ReportFlags, flags_of
from qwill.cli.terminal import notice, print_json, print_table

if TYPE_CHECKING:
    from qwill.hub import StoredModel

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(ReportFlags)


def register(app: App) -> None:
    """Make `qwill list` of this app."""
    app.default(list_models)


def list_models(*, given: Flags | None = None) -> int:
    """List the models on this machine, those used last first."""
    from qwill import hub
    from qwill.hub.progress import format_bytes

    given = given or {}
    models = hub.list_models()
    if given.get("json"):
        print_json([_record(model) for model in models], indent=1)
        return 0
    rows = [
        [model.name, format_bytes(model.bytes), model.source, model.last_used.astimezone().strftime("%Y-%m-%d %H:%M")]
        for model in models
    ]
    if rows:
        print_table(["model", "size", "source", "last used"], rows, sys.stdout)
    elif not given.get("quiet"):
        names = ", ".join(hub.CATALOG)
        notice(f"no model is on this machine yet; qwill pull gets one, for example of: {names}")
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
