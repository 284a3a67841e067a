"""`qwill doctor`: what this machine has and how qwill is set up, for people and for bug reports.

Secrets are never printed, only whether there is one. No network is used unless asked for.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cyclopts import App

from qwill.cli.flags import FLAG_OWNERS, DoctorFlags, flags_of
from qwill.cli.layers import PREFIX, Layer, known_keys, read_layers
from qwill.cli.paths import config_files, state_folder
from qwill.cli.terminal import harmless, print_json, print_table
from qwill.cli.variables import VARIABLES
from qwill.errors import QwillError

__all__ = ["effective_settings", "register", "report"]

Section = dict[str, str | int | float | list[str] | None]

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(DoctorFlags)


def register(app: App) -> None:
    """Make `qwill doctor` of this app."""
    app.default(doctor)


def doctor(*, given: Flags | None = None) -> int:
    """Report versions, processor, memory, folders and where models come from; with --config, every setting."""
    given = given or {}
    if given.get("config"):
        rows = effective_settings(read_layers())
        if given.get("json"):
            print_json([dict(zip(("key", "value", "source"), row, strict=True)) for row in rows], indent=1)
        else:
            print_table(["key", "value", "from"], rows, sys.stdout)
        return 0
    sections = report(network=given.get("network", False))
    if given.get("json"):
        print_json(sections, indent=1)
        return 0
    for title, section in sections.items():
        print(title)
        for name, value in section.items():
            text = ", ".join(value) if isinstance(value, list) else "unknown" if value is None else value
            print(harmless(f"  {name:<20}{text}"))
    return 0


def effective_settings(layers: list[Layer]) -> list[tuple[str, str, str]]:
    """Key, value and source of every setting; a variable of ours that is no setting is listed too, as such."""
    defaults = {field.name: field.default for owner in FLAG_OWNERS for field in dataclasses.fields(owner)}
    rows = []
    for key in known_keys():
        layer = next((layer for layer in layers if key in layer.values), None)
        value = layer.values[key] if layer else defaults.get(key)
        rows.append((key, "" if value is None else str(value), layer.source if layer else "built-in"))
    known = {PREFIX + key.upper() for key in known_keys()} | set(VARIABLES)
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return rows + [(name, os.environ[name], "environment: no such setting") for name in unknown]


def report(*, network: bool) -> dict[str, Section]:
    """Everything that doctor says, by section."""
    from qwill.bench.machine import machine_facts

    facts = machine_facts()
    sections = {
        "software": {**facts["versions"], "python": facts["python"], "system": facts["system"]},
        "processor": _processor(facts),
        "kernels": _kernels(),
        "memory": _memory(facts),
        "folders": _folders(),
        "sources": _sources(),
    }
    return sections | ({"network": _network()} if network else {})


def _processor(facts: dict[str, Any]) -> Section:
    import torch

    return {
        "name": facts["cpu"],
        "architecture": facts["architecture"],
        "cores usable": facts["usable_cores"],
        "cores in machine": os.cpu_count(),
        "instruction sets": facts["cpu_flags"],
        "torch uses": torch.backends.cpu.get_cpu_capability(),
        "cuda": "available, untested" if torch.cuda.is_available() else "none",
    }


def _kernels() -> Section:
    """Which implementation of the ops runs, and on what."""
    from qwill.ops import native_ops, why_no_native_ops

    try:
        ops = native_ops()
    except QwillError as error:
        return {"back end": f"none: {error.what}; {error.hint}"}
    if ops is None:
        return {"back end": f"reference: {why_no_native_ops()}"}
    from qwill import _native

    others = [name for name in _native.instruction_sets() if name != ops.isa]
    return {
        "back end": "native",
        "instruction set": f"{ops.isa} (QWILL_ISA chooses; also here: {', '.join(others) or 'none'})",
        "threads": ops.threads,
    }


def _memory(facts: dict[str, Any]) -> Section:
    from qwill.bench.machine import read_bandwidth
    from qwill.hub.progress import format_bytes

    free = facts["available_memory_bytes"]
    return {
        "installed": format_bytes(facts["memory_bytes"]),
        "available": None if free is None else format_bytes(free),
        "read bandwidth": f"{format_bytes(read_bandwidth(facts['usable_cores']))}/s, measured with all usable cores",
    }


def _folders() -> Section:
    from qwill.hub import cache_root, huggingface, modelscope
    from qwill.hub.progress import format_bytes

    folders = {"huggingface": huggingface.cache_folder(), "modelscope": modelscope.cache_folder(), "own": cache_root()}
    section: Section = {}
    for name, folder in folders.items():
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        section[f"models, {name}"] = f"{folder} ({format_bytes(shutil.disk_usage(existing).free)} free)"
    section["state"] = str(state_folder())
    section["config files"] = [f"{path}{'' if path.is_file() else ' (none)'}" for path in config_files()]
    return section


def _sources() -> Section:
    """How each source is set up, from the environment alone."""
    environ = os.environ
    offline = any(environ.get(name, "") not in ("", "0") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    proxies = [name for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY") if environ.get(name)]
    return {
        "huggingface": f"{_address('HF_ENDPOINT')}, {_token('HF_TOKEN')}",
        "modelscope": f"{_address('MODELSCOPE_ENDPOINT')}, {_token('MODELSCOPE_API_TOKEN')}",
        "pypi": "as pip is configured (python -m pip config list)",
        "offline": "yes" if offline else "no",
        "proxy": ", ".join(proxies) + " set" if proxies else "none",
    }


def _address(variable: str) -> str:
    """The host of a mirror, without a password that may stand before it."""
    address = os.environ.get(variable)
    if not address:
        return "default address"
    try:
        host = urlsplit(address).hostname
    except ValueError:  # for example "http://["
        host = None
    return f"{host or 'not an address'} ({variable})"


def _token(variable: str) -> str:
    return f"{variable} is set" if os.environ.get(variable) else f"no {variable}"


def _network() -> Section:
    """Ask each hub for the list of files of a small model."""
    from qwill.hub import CATALOG, huggingface, modelscope

    entry = next(iter(CATALOG.values()))
    section: Section = {}
    for hub in (huggingface, modelscope):
        repo, revision = entry.repos[hub.SOURCE], hub.DEFAULT_REVISION
        try:
            with hub.open_client(None, repo, revision) as client:
                hub.list_files(client, repo, revision, entry.quant)
            section[hub.SOURCE] = "reachable"
        except QwillError as error:
            section[hub.SOURCE] = error.what
    return section
