"""`qwill verify`: whether a model's files are whole and sane. All work is `qwill.hub.verify`'s; here it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli.flags import Model, Part, VerifyFlags, flags_of, picked
from qwill.cli.load import progress_for
from qwill.cli.terminal import harmless, print_json
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.hub import LocalModel
    from qwill.hub.verify import VerifyReport

__all__ = ["register"]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(Part(EngineSettings, ("source", "revision")), VerifyFlags)


def register(app: App) -> None:
    """Make `qwill verify` of this app."""
    app.default(verify)


def verify(model: Model, *, given: Flags | None = None) -> int:
    """Check the files of a model on this machine: sizes, hashes, headers, shapes, and every value. Changes nothing."""
    from qwill.hub import resolve
    from qwill.hub import verify as checks

    given = given or {}
    found = resolve(model, offline=True, **picked(given, EngineSettings))
    full = not given.get("quick", False)
    report = checks.verify(found.path, progress=progress_for(given), full=full, expected=_promised(found))
    if given.get("json"):
        print_json(_record(report), indent=1)
    else:
        print(harmless(_text(report, full)))
    return 0 if report.ok else 1


def _promised(found: LocalModel) -> Mapping[str, tuple[int, str]] | None:
    """Size and sha256 of files that the catalog knows."""
    from qwill.hub import CATALOG

    entry = CATALOG.get(found.name)
    if entry and entry.included and found.source == "package":
        return {found.path.name: (entry.bytes, entry.included.sha256)}
    if entry is None or entry.pypi is None or found.source != "pypi":
        return None
    return {entry.pypi.file_name: (entry.pypi.size, entry.pypi.sha256)}


def _record(report: VerifyReport) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "path": str(report.path), "ok": report.ok}


def _text(report: VerifyReport, full: bool) -> str:
    from qwill.hub.progress import format_bytes

    lines = [str(report.path)]
    for finding in report.findings:
        lines.append(f"{finding.level}: {finding.what}" + (f"\n  at {finding.where}" if finding.where else ""))
    read = f"{format_bytes(report.bytes_read)} read" if full else "headers only"
    counts = f"{report.files} files, {report.hashed} hashes, {report.tensors} tensors, {report.scanned} scanned"
    return "\n".join([*lines, f"{'good' if report.ok else 'BAD'}: {counts}, {read}"])
