"""`qwill bench`: wired to qwill.bench. (What is measured, and how, is tested there.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_our_own_speed_is_measured_shown_and_written(
    tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--prompt-tokens", "8", "--new-tokens", "4", "-t", "1", "--dtype", "float32"]
    assert main(["bench", "decode", str(tiny_model), *work, "-q", "-o", "result.json"]) == 0
    out, err = capsys.readouterr()
    assert "decode tok/s" in out
    assert err == ""
    record = json.loads((home / "result.json").read_text())
    assert [group["prompt_tokens"] for group in record["groups"]] == [8]
    assert (record["threads"], record["dtype"]) == (1, "float32")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "m", "--repeats", "1"], "3 … 100"),
        (["compare", "m", "--peer", "lamacpp"], "llamacpp"),
        (["compare", "m", "--chart", "x.gif"], ".svg"),
        (["decode", "m", "--prompt-tokens", "0"], "1 … 16 lengths"),
        (["comprae", "m"], "did you mean compare?"),
        (["compare"], "MODEL is missing"),
    ],
)
def test_impossible_work_is_refused_at_once(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["bench", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_a_subcommand_both_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "compare" in out
    assert "decode" in out
