"""`qwill eval kl`: wired to qwill.eval. (What is measured, and how, is tested there.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main
from qwill.hub.progress import SilentProgress


@pytest.fixture
def text(home: Path) -> str:
    """A text of 120 tokens of the small model."""
    (home / "text.txt").write_text("nine quills, " * 9 + "ink")
    return "text.txt"


FLAGS = ["-c", "100", "-t", "1", "--dtype", "bfloat16"]


def test_the_numbers_are_shown_and_written(
    tiny_model: Path, text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "kl", str(tiny_model), "--text", text, *FLAGS, "-o", "out/kl.json"]) == 0
    shown = capsys.readouterr()
    assert "KL divergence" in shown.out
    assert "evaluate: 118 tokens" in shown.err
    assert main(["eval", "kl", str(tiny_model), "--text", text, *FLAGS, "--json", "-q"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    record = json.loads(quiet.out)
    assert record == json.loads((home / "out/kl.json").read_text())
    assert (record["positions"], record["window"], record["settings"]["dtype"]) == (118, 100, "bfloat16")
    assert record["divergence"]["mean"] > 0
    assert str(home) not in (home / "out/kl.json").read_text()


def test_ctrl_c_shows_what_was_measured_so_far(
    tiny_model: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(SilentProgress):
        def advance(self, count: int, item: str = "") -> None:
            """Ctrl-C after the first step."""
            if item.startswith("KL"):
                raise KeyboardInterrupt

    monkeypatch.setattr("qwill.cli.commands.eval.progress_for", lambda given: Stopping())
    assert main(["eval", "kl", str(tiny_model), "--text", text, *FLAGS]) == 130
    shown = capsys.readouterr().out
    assert "64 of 120 tokens" in shown
    assert "interrupted" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--text"),
        (["--text", "gone.txt"], "No such file"),
        (["--text", "."], "Is a directory"),
        (["--text", "empty.txt"], "is empty"),
        (["--text", "text.txt", "--quant", "int5"], "int4"),
        (["--text", "text.txt", "--text-tokens", "1"], "2 …"),
        (["--text", "text.txt", "--output", "."], "cannot write"),
        (["--text", "text.txt", "--qunat", "int4"], "--quant"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(
    tiny_model: Path, text: str, home: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    (home / "empty.txt").write_text("")
    assert main(["eval", "kl", str(tiny_model), *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "hint:" in shown
    assert "load" not in shown


def test_a_mistyped_model_is_answered_with_the_nearest_name(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "kl", "smollm2-135", "--text", text]) == 1
    assert "smollm2-135m" in capsys.readouterr().err


def test_without_a_subcommand_it_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval"]) == 0
    assert "kl" in capsys.readouterr().out
