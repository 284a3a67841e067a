"""Every environment variable that the code reads is listed with its meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwill.cli.layers import PREFIX, known_keys
from qwill.cli.variables import VARIABLES

QWILL = Path(__file__).resolve().parent.parent.parent / "qwill"
CSRC = QWILL.parent / "csrc"
OURS_OR_A_HUBS = re.compile(r"(QWILL|HF|TRANSFORMERS|MODELSCOPE|XDG)(_[A-Z]+)+")
PASSED_ON = {"PYTHONPATH"}
"""Read only to be given to a process of our own."""


def variables_in(text: str) -> Iterator[str]:
    """Names that a piece of source looks up in the environment, and any other text that is such a name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("environ.get", "getenv")):
            yield from constants(node.args[0])
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            yield from constants(node.slice)
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            yield from constants(node.left)
        elif isinstance(node, ast.Constant) and OURS_OR_A_HUBS.fullmatch(str(node.value)):
            yield str(node.value)


def constants(node: ast.expr) -> Iterator[str]:
    """The text, where it is written out."""
    if isinstance(node, ast.Constant):
        yield str(node.value)


def test_every_variable_that_the_code_reads_is_known() -> None:
    known = {*VARIABLES, *(PREFIX + key.upper() for key in known_keys()), *PASSED_ON}
    found = {path.name: set(variables_in(path.read_text(encoding="utf-8"))) - known for path in QWILL.rglob("*.py")}
    assert {name: unknown for name, unknown in found.items() if unknown} == {}


def test_the_kernels_read_no_environment() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp"))
    assert "getenv" not in text


@pytest.mark.parametrize(
    "text",
    [
        "os.environ.get('QWILL_X')",
        "os.environ['QWILL_X']",
        "os.getenv('QWILL_X', '')",
        "'QWILL_X' not in os.environ",
        "for name in ('QWILL_X', other): ...",
    ],
)
def test_the_search_finds_a_variable(text: str) -> None:
    assert set(variables_in(text)) == {"QWILL_X"}


def test_a_variable_is_not_a_setting_too() -> None:
    assert {PREFIX + key.upper() for key in known_keys()} & set(VARIABLES) == set()
