"""`qwill rm`: asks, deletes what it was told to, and never what it did not download."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from qwill.cli import main


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)])
def test_it_asks_first(
    stored_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    assert main(["rm", "acme/tiny"]) == code
    assert "Delete acme/tiny" in capsys.readouterr().err
    assert stored_model.exists() == (code == 1)


def test_with_nobody_to_answer_it_deletes_nothing(
    stored_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["rm", "acme/tiny"]) == 2
    assert "rm -y acme/tiny" in capsys.readouterr().err
    assert stored_model.exists()


def test_yes_deletes_and_tells_what_was_freed(stored_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "-y", "acme/tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] > 10_000
    assert not stored_model.exists()
    assert main(["rm", "-y", "acme/tiny"]) == 1


def test_the_user_s_own_files_are_never_deleted(tiny_model: Path, home: Path) -> None:
    assert main(["rm", "-y", str(tiny_model)]) == 2
    assert (tiny_model / "model.safetensors").exists()


def test_an_empty_name_is_not_asked_about(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", ""]) == 2
    text = capsys.readouterr().err
    assert "empty" in text
    assert "rm -y" not in text
