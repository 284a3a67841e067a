"""`qwill quantize`: the new folder told, usable at once, and refusals as exit codes. (The work has its own tests.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_a_model_is_quantized_and_can_be_inspected(
    tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_model), "small", "--quant", "int8"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("small\n")
    assert "bits per weight" in out
    assert "int8" in out
    assert "quantize to int8" in err
    assert main(["inspect", "./small"]) == 0
    assert "int8" in capsys.readouterr().out
    assert main(["verify", "./small", "--quiet"]) == 0


def test_json_says_the_same(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tiny_model), "small", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert err == ""
    assert record["path"] == "small"
    assert record["bits_per_weight"] == pytest.approx(8 * record["bytes"] / record["weights"], abs=1e-3)
    assert set(record["formats"]) == {"uint4_super", "int8", "F32"}


def test_a_model_is_replaced_with_force_alone(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tiny_model), "small", "--quiet"]) == 0
    assert main(["quantize", str(tiny_model), "small", "--quiet"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["quantize", str(tiny_model), "small", "--quiet", "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--quant", "none"], "nothing to do"),
        (["--quant", "int3"], "int8"),
    ],
)
def test_other_quantizations_are_refused(
    tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["quantize", str(tiny_model), "small", *words]) == 2
    assert told in capsys.readouterr().err
    assert not Path("small").exists()


def test_the_new_folder_must_be_named(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tiny_model)]) == 2
    assert "OUT is missing" in capsys.readouterr().err
