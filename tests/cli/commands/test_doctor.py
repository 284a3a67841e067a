"""`qwill doctor`: everything named, nothing secret, each setting with its source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qwill.cli import main
from qwill.cli.commands.doctor import effective_settings
from qwill.cli.layers import Layer, known_keys
from qwill.ops import backend, native_ops, why_no_native_ops


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwill.bench.machine.BANDWIDTH_BYTES", 1 << 22)
    monkeypatch.setattr("qwill.bench.machine.BANDWIDTH_SECONDS", 0.01)


def test_the_report_names_versions_machine_folders_and_no_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:password@mirror.example/x")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy.example")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(
        part in text for part in ("qwill", "python", "torch", "cores usable", "GB/s", "instruction sets", str(home))
    )
    assert "mirror.example" in text
    assert "HF_TOKEN is set" in text
    assert "hf_secret" not in text
    assert "password" not in text


def test_as_json_the_report_is_one_object(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 1 <= report["processor"]["cores usable"] <= len(os.sched_getaffinity(0))
    assert set(report) == {"software", "processor", "kernels", "memory", "folders", "sources"}


def test_it_tells_which_ops_run_and_why(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kernels() -> dict[str, Any]:
        backend.native_ops.cache_clear()
        assert main(["doctor", "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out)["kernels"])

    ops, why = native_ops(), why_no_native_ops()
    if ops is None:
        assert why in kernels()["back end"]
    else:
        assert kernels()["back end"] == "native"
        assert ops.isa in kernels()["instruction set"]
        monkeypatch.setenv("QWILL_ISA", "baseline")
        assert kernels()["instruction set"].startswith("baseline")
        monkeypatch.setenv("QWILL_ISA", "avx3")
        assert "'avx3' does not run here" in kernels()["back end"]
    monkeypatch.setenv("QWILL_OPS", "reference")
    assert "QWILL_OPS=reference" in kernels()["back end"]
    backend.native_ops.cache_clear()


def test_every_setting_is_listed_with_its_source(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "qwill.toml").write_text("threads = 2")
    monkeypatch.setenv("QWILL_SEED", "7")
    monkeypatch.setenv("QWILL_TEMPRATURE", "1")
    monkeypatch.setenv("QWILL_OPS", "native")
    assert main(["doctor", "--config", "--json"]) == 0
    rows = {row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}
    assert set(known_keys()) <= set(rows)
    assert rows["threads"] == ("2", "qwill.toml")
    assert rows["seed"] == ("7", "environment")
    assert rows["top_p"] == ("1.0", "built-in")
    assert "no such setting" in rows["QWILL_TEMPRATURE"][1]
    assert "QWILL_OPS" not in rows
    assert main(["doctor", "--config"]) == 0
    assert "temperature" in capsys.readouterr().out


def test_the_first_layer_that_has_a_value_is_its_source(home: Path) -> None:
    layers = [Layer("environment", {}), Layer("a", {"seed": 1}), Layer("b", {"seed": 2, "top_k": 3})]
    rows = {key: (value, source) for key, value, source in effective_settings(layers)}
    assert rows["seed"] == ("1", "a")
    assert rows["top_k"] == ("3", "b")


def test_a_config_file_with_a_mistake_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "qwill.toml").write_text("temprature = 2")
    assert main(["doctor"]) == 2
    assert "did you mean temperature" in capsys.readouterr().err


def test_an_address_that_is_none_does_not_end_the_report(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://[")
    assert main(["doctor"]) == 0
    assert "not an address (MODELSCOPE_ENDPOINT)" in capsys.readouterr().out
