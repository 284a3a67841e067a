"""A model for a command, loaded with the given settings and a progress bar. torch and the hubs are imported late."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from qwill.cli.flags import FETCHING, picked
from qwill.cli.terminal import notice
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.async_llm import AsyncLLM
    from qwill.hub.progress import Progress
    from qwill.llm import LLM

__all__ = ["load_async_model", "load_model", "progress_for"]


def progress_for(given: dict[str, Any]) -> Progress:
    """A bar or lines on stderr; nothing with --quiet."""
    from qwill.hub.progress import SilentProgress, terminal_progress

    return SilentProgress() if given.get("quiet") else terminal_progress()


class _Notices(logging.Handler):
    """Warnings of the library are remarks to the user."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it."""
        notice(f"note: {record.getMessage()}")


def load_model(model: str, given: dict[str, Any]) -> LLM:
    """Find or download the model and load it.

    Raises:
        QwillError: see `qwill.LLM`.
    """
    progress = _found(model, given)
    from qwill.llm import LLM

    return LLM(model, progress=progress, **picked(given, EngineSettings))


def load_async_model(model: str, given: dict[str, Any]) -> AsyncLLM:
    """`load_model` for many requests at once.

    Raises:
        QwillError: see `qwill.AsyncLLM`.
    """
    progress = _found(model, given)
    from qwill.async_llm import AsyncLLM

    return AsyncLLM(model, progress=progress, **picked(given, EngineSettings))


def _found(model: str, given: dict[str, Any]) -> Progress:
    """Find or download the model; what goes on, and what the library warns of, is told from now on.

    A name that is mistyped, or a hub that cannot be reached, is told before torch is imported.
    """
    from qwill.hub import resolve

    logging.getLogger("qwill").handlers = [logging.NullHandler() if given.get("quiet") else _Notices()]
    progress = progress_for(given)
    resolve(model, progress=progress, **picked(given, FETCHING))
    return progress
