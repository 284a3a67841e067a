"""`qwill inspect`: wired to the structure print-out. (The print-out itself is tested with qwill.inspect.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_overview_layer_tensors_and_json(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for words in ([], ["--layer", "1"], ["--tensors"], ["--json"]):
        assert main(["show", str(tiny_model), *words]) == 0
        printed[" ".join(words)] = capsys.readouterr().out
    assert "embed_tokens.weight" in printed[""]
    assert "Layer 1" in printed["--layer 1"]
    assert "model.layers.1.mlp.down_proj.weight" in printed["--tensors"]
    assert json.loads(printed["--json"])["config"]["num_layers"] == 2
    assert "\x1b" not in "".join(printed.values())


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--layer", "7"], "0 … 1"), (["--layer", "-1"], "0 … 9999"), (["--json", "--tensors"], "--json")],
)
def test_what_cannot_be_shown_is_refused(
    tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["inspect", str(tiny_model), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_model_that_is_not_here_and_no_network_is_an_error(home: Path) -> None:
    assert main(["inspect", "qwen3-0.6b"]) == 1
