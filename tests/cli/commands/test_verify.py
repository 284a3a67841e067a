"""`qwill verify`: the report told, and its verdict as exit code. (The checks are tested with the hub.)"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qwill.cli import main


def test_good_files_are_good(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny_model), "-q"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("good: ")
    assert main(["verify", str(tiny_model), "--quick", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["ok"], record["scanned"]) == (True, 0)


def test_a_damaged_value_is_named_and_the_exit_code_is_1(
    tiny_model: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-4:] = b"\x00\x00\xc0\x7f"  # NaN
    (copy / "model.safetensors").write_bytes(weights)
    assert main(["verify", str(copy), "-q"]) == 1
    out = capsys.readouterr().out
    assert "error: " in out
    assert "model.safetensors" in out
    assert out.splitlines()[-1].startswith("BAD: ")
    assert main(["verify", str(copy), "--json", "-q"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["level"] == "error"


def test_the_file_inside_the_package_is_the_one_that_was_published(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "tiny", "--json", "-q"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["ok"], record["files"], record["hashed"]) == (True, 1, 1)
