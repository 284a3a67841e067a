"""Loading for a command: the settings reach the engine, and slow imports come last."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from qwill.cli.load import load_async_model, load_model, progress_for
from qwill.errors import ModelNotFoundError
from qwill.hub.progress import LineProgress, SilentProgress


def test_quiet_shows_no_progress() -> None:
    assert isinstance(progress_for({"quiet": True}), SilentProgress)
    assert isinstance(progress_for({}), LineProgress)


def test_the_engine_gets_the_settings_and_nothing_else(tiny_model: Path) -> None:
    given = {"quiet": True, "threads": 1, "max_model_len": 64, "temperature": 0.5, "system": "x"}
    with load_model(str(tiny_model), given) as llm:
        assert (llm.threads, llm.max_model_len) == (1, 64)


def test_a_model_for_many_requests_gets_the_same_settings(tiny_model: Path) -> None:
    made = load_async_model(str(tiny_model), {"quiet": True, "threads": 1, "max_model_len": 64, "temperature": 0.5})
    assert (made.llm.threads, made.llm.max_model_len) == (1, 64)
    asyncio.run(made.aclose())


@pytest.mark.parametrize("load", [load_model, load_async_model])
def test_a_model_that_is_not_here_is_told_first(load: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("qwill.llm", "qwill.async_llm"):
        monkeypatch.setitem(sys.modules, module, None)  # so that importing it fails
    with pytest.raises(ModelNotFoundError):
        load("qwen3-0.6b", {"quiet": True, "offline": True})


@pytest.mark.parametrize(("quiet", "told"), [(False, "note: careful\n"), (True, "")])
def test_warnings_of_the_library_are_notices_and_obey_quiet(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], quiet: bool, told: str
) -> None:
    with load_model(str(tiny_model), {"quiet": quiet, "threads": 1, "max_model_len": 64}):
        capsys.readouterr()
        logging.getLogger("qwill").warning("careful")
    assert capsys.readouterr().err == told
