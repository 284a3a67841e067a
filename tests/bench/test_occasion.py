"""The head of a record: when, where, with which settings."""

from __future__ import annotations

import datetime
from pathlib import Path

from qwill.bench.machine import machine_facts
from qwill.bench.notes import general_notes
from qwill.bench.occasion import Occasion
from qwill.bench.prefill import PrefillSettings
from qwill.bench.target import find_target
from qwill.hub.progress import SilentProgress
from qwill.settings import EngineSettings


def test_an_occasion_knows_the_time_the_machine_and_the_settings_but_no_password() -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    engine = EngineSettings(threads=3, endpoint="https://me:password@mirror.example")
    occasion = Occasion.now("prefill", "m", PrefillSettings(prompt_tokens=(7,)), engine)
    assert before <= datetime.datetime.fromisoformat(occasion.started) <= datetime.datetime.now(datetime.UTC)
    assert occasion.machine["cpu"] == machine_facts()["cpu"]
    assert (occasion.settings["prompt_tokens"], occasion.settings["threads"]) == ((7,), 3)
    assert "endpoint" not in occasion.settings


def test_what_was_measured_is_told_with_the_notes_of_any_table(tiny_model: Path) -> None:
    engine = EngineSettings(threads=1)
    target = find_target(str(tiny_model), engine, SilentProgress(), prompt_tokens=4, new_tokens=1, count=2)
    occasion = Occasion.now("decode", "m", engine)
    measured = occasion.measured(target, [], read_bandwidth=5e9, notes=["and this"])
    assert (measured.benchmark, measured.model, measured.threads, measured.read_bandwidth) == ("decode", "m", 1, 5e9)
    assert measured.architecture == target.config.architecture
    assert measured.notes == [*general_notes(occasion.machine, target.setup.dtype), "and this"]
