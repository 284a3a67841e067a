"""Measuring qwill alone: which work is done, in which order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.alone import check_lengths, measure_alone
from qwill.bench.occasion import Occasion
from qwill.errors import BenchmarkError, SettingError
from qwill.settings import EngineSettings

Command = Callable[..., tuple[str, ...]]


def test_each_length_is_warmed_up_and_measured_with_its_own_number_of_new_tokens(
    tiny_model: Path, pretender_command: Command, tmp_path: Path
) -> None:
    engine, log = EngineSettings(threads=1), tmp_path / "log"
    occasion = Occasion.now("any", str(tiny_model), engine)
    command = pretender_command(log=str(log), weight_bytes=4242)
    measured = measure_alone(occasion, engine, {5: 2, 9: 1}, 3, command=command)
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    work = [(len(r["prompt_token_ids"]), r["new_tokens"]) for op, r in requests if op == "generate"]
    assert work == [(5, 2)] * 4 + [(9, 1)] * 4
    assert [len(group.rows[0].runs) for group in measured.groups] == [3, 3]
    assert measured.read_bandwidth == 1e10
    assert measured.groups[0].rows[0].weight_bytes == 4242
    assert requests[-1][0] == "read_bandwidth"


def test_a_failure_is_an_error(tiny_model: Path, pretender_command: Command) -> None:
    engine = EngineSettings()
    occasion = Occasion.now("any", str(tiny_model), engine)
    with pytest.raises(BenchmarkError, match="this is why it died"):
        measure_alone(occasion, engine, {5: 1}, 3, command=pretender_command(dies_on="load"))


@pytest.mark.parametrize("bad", [(), (0,), (True,), 5, ("5",), (1.0,), (1,) * 17, (2**20 + 1,)], ids=str)
def test_lengths_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(SettingError, match="prompt_tokens"):
        check_lengths(bad)
    check_lengths((1, 2**20))
