"""`qwill explain`: wired to qwill.report. (What is shown, and how, is tested there.)"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from qwill.cli import main

FLAGS = ["--max-tokens", "3", "--temperature", "0", "-t", "1"]


@pytest.fixture(autouse=True)
def nothing_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `</dev/null`."""
    monkeypatch.setattr("sys.stdin", None)


def test_a_page_is_written_and_named(home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tiny_model), "你好", *FLAGS, "-o", "out/page.html"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "out/page.html\n"
    assert "looking: Attention" in shown.err
    page = (home / "out/page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "你好" in page
    assert str(home) not in page


def test_without_a_name_it_is_report_html_and_standard_input_joins_the_prompt(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert main(["explain", str(tiny_model), "words", *FLAGS, "--json", "-q"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    record = json.loads(shown.out)
    assert record["report"] == "report.html"
    assert record["bytes"] == (home / "report.html").stat().st_size
    assert record["prompt"] == "words\n\nfrom a pipe"
    assert record["missing"] == {}
    assert record["facts"]["sampling"] == "greedy"
    assert len(record["sections"]) == 8


def test_flags_reach_the_prompt_and_the_parameters(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--system", "Be brief.", "--temperature", "0.5", "--top-k", "0", "--top-p", "1", "--seed", "7"]
    words += ["--max-tokens", "2", "--json", "-q", "-t", "1"]
    assert main(["explain", str(tiny_model), "x", *words]) == 0
    with_system = json.loads(capsys.readouterr().out)
    assert with_system["facts"]["sampling"] == "temperature 0.5, seed 7"
    assert main(["explain", str(tiny_model), "x", "--raw", *words[2:]]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["facts"]["prompt"] == "1 token"
    assert int(with_system["facts"]["prompt"].split()[0]) > 10


def test_ctrl_c_leaves_no_half_file(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_report: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("qwill.report.report.Report.html", stopped)
    assert main(["explain", str(tiny_model), "x", *FLAGS]) == 130
    assert [file.name for file in home.iterdir() if "report" in file.name] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the prompt is empty"),
        (["x", "--raw", "--system", "s"], "--raw has no chat template"),
        (["x", "-o", "."], "cannot write"),
        (["x", "--temperature", "-1"], "temperature"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["explain", str(tiny_model), *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "load" not in shown


def test_a_prompt_that_is_too_long_is_refused(home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tiny_model), "x", "--max-tokens", "2048", "-q", "-t", "1"]) == 2
    shown = capsys.readouterr().err
    assert "room for 2048 tokens" in shown
    assert "hint:" in shown
