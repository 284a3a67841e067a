"""The size rule finds what is too big, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import size


def findings(tmp_path: Path, text: str, name: str = "qwill/example.py") -> list[str]:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [f"{finding.key}: {finding.problem}" for finding in size.check_file(path, tmp_path)]


def function(lines: int, parameters: str = "", indent: str = "") -> str:
    return "\n".join([f"{indent}def f({parameters}):"] + [f"{indent}    pass"] * (lines - 1)) + "\n"


def test_fifty_lines_pass_and_fifty_one_do_not(tmp_path: Path) -> None:
    assert findings(tmp_path, function(50)) == []
    assert findings(tmp_path, function(51)) == ["qwill/example.py:f: 51 lines, at most 50"]


def test_four_hundred_lines_pass_and_one_more_does_not(tmp_path: Path) -> None:
    assert findings(tmp_path, "x = 1\n" * 400) == []
    assert findings(tmp_path, "x = 1\n" * 401) == ["qwill/example.py: 401 lines, at most 400"]


@pytest.mark.parametrize("parameters", ["a, b, c, d, e", "self, a, b, c, d, e", "a, b, /, c, d, e, *, f, g, h", "*a"])
def test_five_positional_parameters_pass_and_keyword_only_ones_do_not_count(tmp_path: Path, parameters: str) -> None:
    assert findings(tmp_path, function(2, parameters)) == []


def test_six_positional_parameters_are_too_many(tmp_path: Path) -> None:
    assert findings(tmp_path, function(2, "a, b, c, /, d, e, f")) == [
        "qwill/example.py:f: 6 positional parameters, at most 5"
    ]


def test_tests_may_take_as_many_fixtures_as_they_like(tmp_path: Path) -> None:
    assert findings(tmp_path, function(2, "a, b, c, d, e, f"), "tests/test_example.py") == []


def test_a_method_and_a_nested_function_are_named_in_full(tmp_path: Path) -> None:
    text = "class A:\n" + function(2, "self", "    ") + function(51, indent="        ")
    assert findings(tmp_path, text)[-1] == "qwill/example.py:A.f.f: 51 lines, at most 50"


def test_an_exception_excuses_and_a_stale_one_is_reported() -> None:
    found = [size.Finding("qwill/a.py", "401 lines, at most 400")]
    assert size.unexcused(found, {"qwill/a.py": "a table"}) == []
    assert size.unexcused([], {"qwill/a.py": "a table"}) == [
        "qwill/a.py: no longer too big; take it off the exceptions"
    ]


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason.split()) >= 3 for reason in size.EXCEPTIONS.values())


def test_the_project_keeps_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert size.main() == 0, capsys.readouterr().err
