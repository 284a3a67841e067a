"""`qwill list`: a table for people, JSON for programs, a word of help when there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_a_stored_model_is_listed(stored_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    heads, row, included = capsys.readouterr().out.splitlines()
    assert heads.split() == ["model", "size", "source", "last", "used"]
    assert row.startswith("acme/tiny ")
    assert "huggingface" in row
    assert included.split()[0] == "tiny"
    assert included.split()[-1] == "package"
    assert main(["ls", "--json"]) == 0
    record, _ = json.loads(capsys.readouterr().out)
    assert (record["name"], record["path"]) == ("acme/tiny", str(stored_model))
    assert record["bytes"] > 10_000


def test_without_downloads_what_is_part_of_qwill_is_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["model", "tiny"]
    assert "qwill pull" in err
    assert main(["list", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["source"], record["last_used"]) == ("tiny", "package", None)
