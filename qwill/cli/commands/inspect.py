"""`qwill inspect`: a model's structure, from headers alone. All work is `qwill.inspect`'s."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import FETCHING, InspectFlags, Model, check_given, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.terminal import console_for, print_json
from qwill.errors import UsageError
from qwill.settings import EngineSettings

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(InspectFlags, FETCHING)


def register(app: App) -> None:
    """Make `qwill inspect` of this app."""
    app.default(inspect)


def inspect(model: Model, *, given: Flags | None = None) -> int:
    """Show a model's structure, sizes and memory needs. Reads headers only; fetches no more of a model not here."""
    from qwill.inspect import inspect_model, render_structure, structure_to_dict

    given = given or {}
    check_given(given, InspectFlags)
    layer, tensors = given.get("layer"), given.get("tensors", False)
    if given.get("json") and (layer is not None or tensors):
        raise UsageError("--json gives everything, so it goes with neither --layer nor --tensors")
    structure = inspect_model(model, progress=progress_for(given), **picked(given, EngineSettings))
    if given.get("json"):
        print_json(structure_to_dict(structure), indent=1)
    else:
        render_structure(structure, console_for(sys.stdout), layer=layer, tensors=tensors)
    return 0
