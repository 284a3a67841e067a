"""From a model's name to files on this machine. Torch-free.

resolve(name)      find the model here, or download it
pull(name)         download it, or bring it up to date
list_models()      what is here
remove(name)       delete one model
"""

from __future__ import annotations

from qwill.errors import ModelNotFoundError
from qwill.hub import local, pypi
from qwill.hub.names import LocalModel, parse_name
from qwill.hub.progress import Progress, SilentProgress

__all__ = ["LocalModel", "resolve"]


def resolve(
    name: str,
    *,
    source: str = "auto",
    revision: str | None = None,
    endpoint: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> LocalModel:
    """Find a model on this machine, or download it."""
    del source, endpoint  # hubs are not wired up yet
    wanted = parse_name(name, revision=revision)
    if wanted.path is not None:
        return local.find(wanted)
    found = pypi.find(wanted)
    if found is not None:
        return found
    if offline:
        raise ModelNotFoundError(f"{name} is not on this machine")
    return pypi.fetch(wanted, progress=progress or SilentProgress())
