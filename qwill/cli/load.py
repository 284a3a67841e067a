"""A model for a command, loaded with the given settings and a progress bar. torch and the hubs are imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qwill.cli.flags import FETCHING, picked
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.hub.progress import Progress
    from qwill.llm import LLM

__all__ = ["load_model", "progress_for"]


def progress_for(given: dict[str, Any]) -> Progress:
    """A bar or lines on stderr; nothing with --quiet."""
    from qwill.hub.progress import SilentProgress, terminal_progress

    return SilentProgress() if given.get("quiet") else terminal_progress()


def load_model(model: str, given: dict[str, Any]) -> LLM:
    """Find or download the model and load it.

    Raises:
        QwillError: see `qwill.LLM`.
    """
    from qwill.hub import resolve

    progress = progress_for(given)
    # A name that is mistyped, or a hub that cannot be reached, is told before torch is imported.
    resolve(model, progress=progress, **picked(given, FETCHING))
    from qwill.llm import LLM

    return LLM(model, progress=progress, **picked(given, EngineSettings))
