"""`qwill quantize`: a model's folder made into a quantized one. All work is `qwill.quantize`'s; here it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from qwill.cli.flags import FETCHING, Model, Part, QuantizeFlags, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.terminal import harmless, print_json
from qwill.errors import UsageError
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.quantize import QuantizedFolder

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(Part(EngineSettings, ("quant", *FETCHING.names)), QuantizeFlags)


def register(app: App) -> None:
    """Make `qwill quantize` of this app."""
    app.default(quantize)


def quantize(
    model: Model,
    out: Annotated[str, Parameter(name="--out", help="the new folder", group="Arguments")],
    *,
    given: Flags | None = None,
) -> int:
    """Quantize a model into a new folder that loads at once. With --quant auto, the default, to int4."""
    from qwill.hub import resolve

    given = given or {}
    quant = str(given.get("quant", "auto")).replace("auto", "int4")
    if quant == "none":
        raise UsageError("with --quant none there is nothing to do", hint="--quant int4 or --quant int8")
    progress = progress_for(given)
    found = resolve(model, progress=progress, **picked(given, FETCHING))
    from qwill.quantize import quantize_folder

    made = quantize_folder(found.path, Path(out), quant, force=given.get("force", False), progress=progress)
    if given.get("json"):
        print_json(_record(made))
    else:
        print(harmless(_text(made)))
    return 0


def _record(made: QuantizedFolder) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "weights": made.weights,
        "bits_per_weight": round(made.bits_per_weight, 4),
        "bytes": made.weight_bytes,
        "source_bytes": made.source_bytes,
        "formats": made.formats,
    }


def _text(made: QuantizedFolder) -> str:
    from qwill.hub.progress import format_bytes

    shares = ", ".join(f"{count / made.weights:.1%} {name}" for name, count in made.formats.items())
    return (
        f"{made.path}\n"
        f"{format_bytes(made.source_bytes)} became {format_bytes(made.weight_bytes)}: "
        f"{made.bits_per_weight:.2f} bits per weight ({shares})"
    )
