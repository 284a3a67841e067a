"""Tests mirror the tree: qwill/a/b.py is tested by tests/a/test_b.py or by tests/a/test_b_topic.py.

So are scripts/ and benchmarks/: scripts/c.py by tests/scripts/test_c.py.

A package's `__init__.py` is tested by tests/a/test_init.py where it does more than name things.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

UNTESTED: dict[str, str] = {
    "qwill/__main__.py": "three lines; tests/cli runs them as `python -m qwill`",
    "benchmarks/linear.py": "one measurement, behind a decision that was made",
    "benchmarks/quality.py": "runs llama.cpp's tools; what it measures with is tested in tests/eval",
    "scripts/demo.py": "the demo runs the public commands, which have their own tests",
}
"""Source file -> why no test file has its name."""

WHOLE_PROJECT: dict[str, str] = {
    "tests/csrc/test_kernels.py": "builds and runs the C++ tests of csrc/",
    "tests/test_architecture.py": "imports, light modules and banned calls of all files",
    "tests/test_docs.py": "the documentation runs",
    "tests/test_glossary.py": "one word for one thing, in all files",
    "tests/test_layout.py": "this file",
    "tests/test_shapes.py": "executes the shape comments of the models and the ops",
}
"""Test file -> what it tests, where that is no single source file."""


def sources() -> list[str]:
    """Every source file of ours, package doors aside."""
    paths = [path for folder in ("qwill", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py")


def files_of_tests() -> list[str]:
    """Every test file."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def home_of_tests(source: str) -> str:
    """The test file's path without its ending: qwill/a/b.py -> tests/a/test_b, scripts/c.py -> tests/scripts/test_c."""
    path = Path(source)
    folder = path.parent.relative_to("qwill") if path.parts[0] == "qwill" else path.parent
    return (Path("tests") / folder / f"test_{path.stem}").as_posix()


def belongs(test: str, home: str) -> bool:
    """Whether a test file is a home's own, or one of its topics."""
    return test == f"{home}.py" or test.startswith(f"{home}_")


@pytest.mark.parametrize("source", sources())
def test_a_source_file_has_its_test_file(source: str) -> None:
    tested = any(belongs(test, home_of_tests(source)) for test in files_of_tests())
    excused = source in UNTESTED
    assert tested != excused, f"{source}: write {home_of_tests(source)}.py, or a reason into UNTESTED (and not both)"


@pytest.mark.parametrize("test", files_of_tests())
def test_a_test_file_has_its_source_file(test: str) -> None:
    homes = [home_of_tests(source) for source in sources()]
    folder = Path(test).parent.relative_to("tests")
    if (ROOT / "qwill" / folder / "__init__.py").exists():
        homes.append((Path(test).parent / "test_init").as_posix())
    tests_a_file = any(belongs(test, home) for home in homes)
    excused = test in WHOLE_PROJECT
    assert tests_a_file != excused, f"{test}: no file has this name; rename it, or say in WHOLE_PROJECT what it tests"


def test_the_lists_of_exceptions_name_files_that_exist() -> None:
    assert [name for name in (*UNTESTED, *WHOLE_PROJECT) if not (ROOT / name).exists()] == []


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("source", sources())
def test_a_source_file_says_what_it_is_for(source: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / source).read_text(encoding="utf-8"))), (
        f"{source} opens with no docstring"
    )
