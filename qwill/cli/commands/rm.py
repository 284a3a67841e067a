"""`qwill rm`: delete a model that qwill downloaded."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import Model, Part, RemoveFlags, flags_of, picked
from qwill.cli.terminal import ask, is_terminal
from qwill.errors import UsageError
from qwill.settings import EngineSettings

__all__ = ["register"]


if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(Part(EngineSettings, ("source",)), RemoveFlags)


def register(app: App) -> None:
    """Make `qwill rm` of this app."""
    app.default(remove)


def remove(model: Model, *, given: Flags | None = None) -> int:
    """Delete a model from this machine. Asks first, unless -y is given."""
    from qwill import hub
    from qwill.hub.progress import format_bytes

    given = given or {}
    if not model.strip():
        raise UsageError("the name of the model is empty", hint="qwill list shows the names")
    if not given.get("yes"):
        if not is_terminal(sys.stdin):
            raise UsageError("rm asks before it deletes, and nobody is here to answer", hint=f"qwill rm -y {model}")
        if not ask(f"Delete {model} from this machine?", default=False):
            return 1
    freed = hub.remove(model, **picked(given, EngineSettings))
    print(json.dumps({"freed_bytes": freed}) if given.get("json") else f"deleted {model}: {format_bytes(freed)} freed")
    return 0
