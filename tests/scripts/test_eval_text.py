"""Evaluation texts come out of Debian packages whole and without colours, or not at all."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from qwill.errors import IntegrityError
from scripts import eval_text

COLOURED = "\x1b[32m《静夜思》\x1b[m\n\x1b[1;33m李白\x1b[m\n床前明月光\n"
PLAIN = "《静夜思》\n李白\n床前明月光\n".encode()
MEMBER = "./usr/share/games/fortunes/tang"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A Debian package with one coloured text."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is not installed")
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    control = {"Package": "tang", "Version": "1", "Architecture": "all", "Maintainer": "x <x@x>", "Description": "x"}
    (root / "DEBIAN" / "control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
    (root / MEMBER).parent.mkdir(parents=True)
    (root / MEMBER).write_text(COLOURED)
    subprocess.run(["dpkg-deb", "--build", str(root), str(tmp_path / "tang.deb")], check=True, capture_output=True)
    return tmp_path / "tang.deb"


def test_a_text_is_taken_out_of_a_package_without_its_colours(package: Path) -> None:
    source = eval_text.Source("tang", MEMBER, hashlib.sha256(PLAIN).hexdigest())
    assert eval_text.take_text(package, source) == PLAIN


@pytest.mark.parametrize("member", [MEMBER, "./usr/share/gone", "./usr/share/games/fortunes"])
def test_another_text_than_the_expected_one_is_refused(package: Path, member: str) -> None:
    with pytest.raises(IntegrityError, match="not the expected one"):
        eval_text.take_text(package, eval_text.Source("tang", member, "0" * 64))


def test_without_apt_there_is_a_hint_and_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert eval_text.main(["english"]) == eval_text.EXIT_MISSING
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "hint: use Debian" in shown.err


def test_a_name_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_text.main(["german"]) == 2
    assert "english, chinese" in capsys.readouterr().err


def test_what_is_here_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    for name in eval_text.SOURCES:
        path = tmp_path / "test-data" / "eval-text" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("here")
    assert eval_text.main(["chinese"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'test-data' / 'eval-text' / 'chinese.txt'}\n"
    assert eval_text.main([]) == 0
    assert "english is in" in capsys.readouterr().out
