"""`qwill pull`: download a model. All work is the hub's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import FETCHING, Model, ReportFlags, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.terminal import print_json
from qwill.settings import EngineSettings

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(FETCHING, ReportFlags)


def register(app: App) -> None:
    """Make `qwill pull` of this app."""
    app.default(pull)


def pull(model: Model, *, given: Flags | None = None) -> int:
    """Download a model, or bring it up to date. Run again after an interruption, it goes on where it stopped."""
    from qwill import hub

    given = given or {}
    found = hub.pull(model, progress=progress_for(given), **picked(given, EngineSettings))
    if given.get("json"):
        about = {"name": found.name, "path": str(found.path), "source": found.source, "revision": found.revision}
        print_json(about)
    else:
        print(found.path)
    return 0
