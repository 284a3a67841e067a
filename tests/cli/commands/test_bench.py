"""`qwill bench`: wired to qwill.bench. (What is measured, and how, is tested there.)"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.compare import CompareSettings
from qwill.bench.decode import DecodeSettings
from qwill.bench.kernels import KernelMeasurement, KernelSettings, Timing
from qwill.bench.prefill import PrefillSettings
from qwill.bench.results import Group, Measurement, Row, Run, Spread
from qwill.bench.serve_offline import ServeMeasurement
from qwill.bench.serving import Served, Serving
from qwill.bench.workload import ServeSettings
from qwill.cli import main
from qwill.engine import EngineStats
from qwill.settings import EngineSettings


def measurement() -> Measurement:
    run = Run(8, [1, 2], [0.5, 0.6])
    row = Row("qwill", "qwill", 0.1, 2**20, "float32", 1, {}, 1000, [run] * 3)
    machine = {"cpu": "any", "usable_cores": 1, "python": "3", "versions": {}}
    return Measurement("decode", "m", "qwen3", 1000, "float32", 1, "now", machine, 1e9, {}, [Group(8, 2, [row])])


@pytest.mark.parametrize(
    ("kind", "words", "settings"),
    [
        ("compare", ["--new-tokens", "9"], CompareSettings(new_tokens=9, repeats=4)),
        ("decode", ["--new-tokens", "9"], DecodeSettings(new_tokens=9, repeats=4)),
        ("prefill", ["--prompt-tokens", "9"], PrefillSettings(prompt_tokens=(9,), repeats=4)),
    ],
)
def test_settings_reach_the_measurement_and_its_result_is_shown_and_written(
    kind: str,
    words: list[str],
    settings: Any,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def measure(*arguments: Any, progress: Any) -> Measurement:
        asked.append(arguments)
        return measurement()

    monkeypatch.setattr(f"qwill.bench.{kind}.{'compare' if kind == 'compare' else 'measure'}", measure)
    assert main(["bench", kind, "m", *words, "-t", "1", "--repeats", "4", "-o", "out/result.json"]) == 0
    assert asked == [("m", settings, EngineSettings(threads=1))]
    assert "decode tok/s" in capsys.readouterr().out
    assert json.loads((home / "out/result.json").read_text())["groups"][0]["new_tokens"] == 2
    assert main(["bench", kind, "m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read_bandwidth"] == 1e9


def test_kernels_need_no_model_and_their_timings_are_shown_and_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def measure(*arguments: Any, progress: Any) -> KernelMeasurement:
        asked.append(arguments)
        timing = Timing("rms_norm", "", 1, Spread(1e-6, 1e-6, 1e-6), 8e9, None, None)
        return KernelMeasurement("avx2", 1, "now", {"cpu": "any"}, 1e9, {}, [timing])

    monkeypatch.setattr("qwill.bench.kernels.measure", measure)
    assert main(["bench", "kernels", "--context", "99", "-t", "1", "-o", "out/result.json"]) == 0
    assert asked == [(KernelSettings(context=99), 1)]
    assert "rms_norm" in capsys.readouterr().out
    assert json.loads((home / "out/result.json").read_text())["timings"][0]["op"] == "rms_norm"
    assert main(["bench", "kernels", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["isa"] == "avx2"


def test_a_workload_reaches_the_measurement_and_its_result_is_shown_and_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def measure(*arguments: Any, progress: Any) -> ServeMeasurement:
        asked.append(arguments)
        stats = EngineStats(steps=1, prompt_tokens=8, model_seconds=0.5)
        serving = Serving([Served(8, 2, 0, 0.0, 0.5, 1.0)], 1.0, 1.0, 0.0, 1.0, stats)
        about = replace(measurement(), groups=[], settings={**asdict(arguments[1]), **asdict(arguments[2])})
        return ServeMeasurement(about, serving, 2**20, 1000)

    monkeypatch.setattr("qwill.bench.serve_offline.measure", measure)
    words = ["--prompt-tokens", "8", "--prompt-tokens", "90", "--requests", "3", "-np", "2", "-o", "out/result.json"]
    assert main(["bench", "serve-offline", "m", *words]) == 0
    assert asked == [("m", ServeSettings(requests=3, prompt_tokens=(8, 90)), EngineSettings(max_num_seqs=2))]
    assert "output tok/s" in capsys.readouterr().out
    assert json.loads((home / "out/result.json").read_text())["requests"][0]["last_token"] == 1.0
    assert main(["bench", "serve-offline", "m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output_tokens_per_second"] == 2.0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "m", "--repeats", "1"], "3 … 100"),
        (["compare", "m", "--peer", "lamacpp"], "llamacpp"),
        (["compare", "m", "--chart", "x.gif"], ".svg"),
        (["decode", "m", "--prompt-tokens", "0"], "1 … 16 lengths"),
        (["prefill", "m", "--prompt-tokens", "0"], "1 … 16 lengths"),
        (["serve-offline", "m", "--new-tokens", "0"], "one length of 1 … 1048576 tokens, or two"),
        (["kernels", "--op-seconds", "0"], "0.001 … 60"),
        (["comprae", "m"], "did you mean compare?"),
        (["compare"], "MODEL is missing"),
    ],
)
def test_impossible_work_is_refused_at_once(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["bench", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_a_subcommand_all_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("compare", "decode", "prefill", "serve-offline", "kernels"))
