"""The speed of prompts: one new token after each length, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.prefill import PrefillSettings, measure
from qwill.errors import SettingError
from qwill.settings import EngineSettings

Command = Callable[..., tuple[str, ...]]


def test_every_length_is_computed_up_to_its_first_new_token(
    tiny_model: Path, pretender_command: Command, tmp_path: Path
) -> None:
    log, settings = tmp_path / "log", PrefillSettings(prompt_tokens=(64, 8, 64))
    measured = measure(str(tiny_model), settings, EngineSettings(threads=1), command=pretender_command(log=str(log)))
    assert measured.benchmark == "prefill"
    assert [(group.prompt_tokens, group.new_tokens) for group in measured.groups] == [(8, 1), (64, 1)]
    assert measured.groups[1].rows[0].prefill_speed.median == pytest.approx(128.0)
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    assert [request["new_tokens"] for op, request in requests if op == "generate"] == [1] * 8


@pytest.mark.parametrize("bad", [{"prompt_tokens": ()}, {"prompt_tokens": (0,)}, {"repeats": 2}], ids=str)
def test_settings_that_measure_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        PrefillSettings(**bad)
