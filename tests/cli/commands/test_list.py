"""`qwill list`: a table for people, JSON for programs, a word of help when there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_a_stored_model_is_listed(stored_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == ["model", "size", "source", "last", "used"]
    assert row.startswith("acme/tiny ")
    assert "huggingface" in row
    assert main(["ls", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["path"]) == ("acme/tiny", str(stored_model))
    assert record["bytes"] > 10_000


def test_nothing_here_is_no_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "qwill pull" in err
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
