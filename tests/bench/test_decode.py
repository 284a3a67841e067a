"""Our own speed: which work is done, and what comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.decode import DecodeSettings, measure
from qwill.errors import BenchmarkError, SettingError
from qwill.settings import EngineSettings

Command = Callable[..., tuple[str, ...]]


def test_every_length_is_computed_and_decoding_follows_the_shortest(
    tiny_model: Path, pretender_command: Command, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = DecodeSettings(prompt_tokens=(64, 8, 100), new_tokens=20)
    measured = measure(
        str(tiny_model), settings, EngineSettings(threads=1), command=pretender_command(log=str(log), speed=40.0)
    )
    assert [(group.prompt_tokens, group.new_tokens) for group in measured.groups] == [(8, 20), (64, 1), (100, 1)]
    assert measured.groups[0].rows[0].decode_speed.median == pytest.approx(40.0)
    assert measured.groups[1].rows[0].prefill_speed.median == pytest.approx(128.0)
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    prompts = [tuple(request["prompt_token_ids"]) for op, request in requests if op == "generate"]
    assert [len(prompt) for prompt in prompts] == [8] * 4 + [64] * 4 + [100] * 4
    assert requests[0][1]["setup"]["max_model_len"] == 120


def test_a_failure_is_an_error(tiny_model: Path, pretender_command: Command) -> None:
    with pytest.raises(BenchmarkError, match="this is why it died"):
        measure(str(tiny_model), command=pretender_command(dies_on="load"))


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt_tokens": ()}, {"prompt_tokens": (0,)}, {"prompt_tokens": (True,)}, {"prompt_tokens": 5},
        {"prompt_tokens": ("5",)}, {"prompt_tokens": (1.0,)}, {"prompt_tokens": (1,) * 17}, {"new_tokens": 1},
        {"repeats": 2},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_measure_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        DecodeSettings(**bad)
