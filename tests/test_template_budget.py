"""The budget's own arithmetic; what templates can do against it is tested in test_templates.py."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.utils import Namespace

from qwill import template_budget
from qwill.errors import TemplateError
from qwill.template_budget import Budget, size_of


@pytest.fixture
def budget() -> Budget:
    return Budget({}, "")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("abc", (0, 3, 0)),
        (7, (0, 0, 0)),
        ([], (0, 0, 0)),
        (["a", "bc", 1], (3, 3, 1)),
        ({"key": ["v"]}, (2, 4, 2)),
        ([[1, 2], (3,)], (5, 0, 2)),
        ({"a": 1}.items(), (3, 1, 2)),
        (range(5), (5, 0, 1)),
    ],
)
def test_entries_characters_and_depth_are_counted(value: Any, size: tuple[int, int, int]) -> None:
    assert size_of(value, 1000) == size


def test_a_value_counts_as_often_as_it_can_be_reached() -> None:
    value: list[Any] = ["ab"]
    for _ in range(5):
        value = [value, value]
    assert size_of(value, 1000) == (2 + 4 + 8 + 16 + 32 + 32, 64, 6)


@pytest.mark.parametrize("size", [30, 60])
def test_an_exponential_value_is_refused_at_once(size: int) -> None:
    value: list[Any] = ["ab"]
    for _ in range(size):
        value = [value, value]
    with pytest.raises(TemplateError, match="too large a value"):
        size_of(value, 10_000)


def test_too_deep_a_value_is_refused() -> None:
    value: list[Any] = []
    for _ in range(200):
        value = [value]
    with pytest.raises(TemplateError, match="too deeply"):
        size_of(value, 10_000)


def test_a_namespace_inside_a_value_is_refused() -> None:
    with pytest.raises(TemplateError, match="namespace"):
        size_of([Namespace()], 100, plain=True)


def test_characters_run_out(budget: Budget) -> None:
    for _ in range(2):
        budget.made("x" * 1_000_000)
    with pytest.raises(TemplateError, match="too much text"):
        budget.made("x" * 1_000_000)


def test_what_was_given_enlarges_the_budget() -> None:
    budget = Budget({"messages": ["x" * 1_000_000]}, "")
    for _ in range(20):
        budget.made("x" * 1_000_000)


def test_time_runs_out(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    budget.step()
    monkeypatch.setattr(template_budget.time, "thread_time", lambda: 1e9)
    with pytest.raises(TemplateError, match="too long"):
        budget.step()


def test_counted_values_keep_their_length_and_order(budget: Budget) -> None:
    values: Any = budget.counted(["a", "b"])
    assert (len(values), list(values), list(values)) == (2, ["a", "b"], ["a", "b"])
    with pytest.raises(TypeError):
        len(budget.counted(x for x in "ab"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [("*", "ab", 10**9), ("*", 10**9, [1]), ("*", ("x" * 1000,), 10**5), ("**", 10, 10**9), ("%", "%*d", (10**9, 1))],
)
def test_an_operator_that_grows_its_value_is_refused_before_it_runs(
    budget: Budget, operator: str, left: Any, right: Any
) -> None:
    with pytest.raises(TemplateError):
        budget.check_operator(operator, left, right)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [("*", "ab", 10), ("*", 1e300, 1e300), ("**", 2, 64), ("**", 10**9, -(10**9)), ("%", 7, 3), ("%", "%5.2f%%", 1.0)],
)
def test_ordinary_operators_pass(budget: Budget, operator: str, left: Any, right: Any) -> None:
    budget.check_operator(operator, left, right)
