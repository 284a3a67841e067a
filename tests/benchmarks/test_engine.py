"""The command: each part by itself, and an output that keeps the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import engine
from qwill.bench import machine


@pytest.mark.skipif(sys.platform != "linux", reason="the memory part reads /proc")
def test_a_part_is_measured_in_its_own_process_and_the_output_keeps_the_others(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 22)
    output = tmp_path / "engine.json"
    output.write_text(json.dumps({"benchmark": "engine", "parts": {"single": {"findings": []}}}))
    words = ["--output", str(output), "--parts", "memory", "--tiny", str(tiny_model), "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["engine", *words, "--requests", "20", "--early", "5"])
    engine.main()
    record = json.loads(output.read_text())
    assert set(record["parts"]) == {"single", "memory"}
    part = record["parts"]["memory"]
    assert part["machine"]["usable_cores"] >= 1
    assert part["read_bandwidth"] > 0
    [found] = part["findings"]
    assert found["name"] == "growth of memory from 5 to 20 requests"
    assert f"{found['value']:.4f}" in capsys.readouterr().out


def test_a_finding_is_told_with_its_bound() -> None:
    found = {"name": "this", "value": 0.5, "at_most": 0.08, "at_least": None, "reached": False}
    assert engine.line(found).split() == ["0.5000", "≤", "0.08", "NOT", "REACHED", "this"]
    free = {"name": "that", "value": 1.25, "at_most": None, "at_least": None, "reached": None}
    assert engine.line(free).split() == ["1.2500", "that"]


def test_unknown_parts_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["engine", "--output", "x.json", "--parts", "speed"])
    with pytest.raises(SystemExit):
        engine.parse()
    assert "invalid choice: 'speed'" in capsys.readouterr().err
