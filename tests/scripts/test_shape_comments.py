"""Shape comments are executed: false ones are found, and so are those that never ran."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scripts.shape_comments import ShapeChecker, ShapeCommentError

SIZES = {"T": 7, "Hq": 6, "Hkv": 3, "D": 8, "C": 20}


def tensor(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., list[str]]:
    """Run `f` of a piece of source with some arguments; the problems found, without the folder."""

    def run(source: str, *arguments: Any, sizes: dict[str, int] = SIZES) -> list[str]:
        path = tmp_path / "example.py"
        path.write_text(source)
        checker = ShapeChecker([path], set(SIZES))
        with checker.sizes(**sizes):
            load(path).f(*arguments)
        return [problem.removeprefix(f"{tmp_path}/") for problem in checker.problems()]

    return run


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRUE = {
    "an assignment": "def f(x):\n    y = x  # (T, C)\n",
    "a return": "def f(x):\n    return x  # (T, C)\n",
    "prose after the shape": "def f(x):\n    y = x  # (T, C) in the model's dtype (once per step)\n",
    "arithmetic": "def f(x):\n    y = x  # (T, Hq + 2*Hkv + D)\n",
    "leading dots": "def f(x):\n    y = x  # (..., C)\n",
    "one dimension of a number": "def f(x):\n    y = x  # (7, C)\n",
    "a tuple": "def f(x):\n    y, z = x, x  # (T, C) (T, C)\n",
    "one shape for each of a tuple": "def f(x):\n    y, z = x, x  # (T, C)\n",
    "a tuple under one name": "def f(x):\n    y = (x, x)  # (T, C) (T, C)\n",
    "a tuple returned": "def f(x):\n    return x, x  # (T, C), (T, C)\n",
    "two assignments on a line": "def f(x):\n    y = x; z = x  # (T, C) (T, C)\n",
    "an attribute": "def f(x):\n    x.y = x  # (T, C)\n",
    "an annotated assignment": "def f(x):\n    y: object = x  # (T, C)\n",
    "a statement over several lines": "def f(x):\n    y = max(\n        [x],\n        key=id,\n    )  # (T, C)\n",
    "a comment on the first of several lines": "def f(x):\n    y = max(  # (T, C)\n        [x], key=id,\n    )\n",
    "a loop": "def f(x):\n    for _ in range(3):\n        y = x  # (T, C)\n",
    "a return inside with": "import io\ndef f(x):\n    with io.StringIO() as s:\n        return x  # (T, C)\n",
    "a return before finally": "def f(x):\n    try:\n        return x  # (T, C)\n    finally:\n        y = 1\n",
    "a name that is used again": "def f(x):\n    y = x  # (T, C)\n    y = None\n",
    "an inner function": "def f(x):\n    def g(x):\n        return x  # (T, C)\n    y = g(x)  # (T, C)\n",
    "an optional value": "def f(x):\n    for z in (None, x):\n        y = z  # (T, C)\n",
    "prose that is no shape": "def f(x):\n    y = x  # (see the paper) or (this, here)\n",
    "a shape in a string": "def f(x):\n    y = '# (T, T)'\n",
    "a comment on a line of its own": "def f(x):\n    # (T, T)\n    y = x\n",
}


@pytest.mark.parametrize("source", TRUE.values(), ids=TRUE.keys())
def test_a_true_comment_passes(check: Callable[..., list[str]], source: str) -> None:
    assert check(source, tensor(7, 20)) == []


@pytest.mark.parametrize(
    "source", [s for name, s in TRUE.items() if "(T, C)" in s and "one shape for" not in name], ids=lambda s: None
)
def test_the_same_comment_is_false_for_another_value(check: Callable[..., list[str]], source: str) -> None:
    problems = check(source, tensor(20, 7))
    assert problems
    assert all("comment says (T, C) = (7, 20), it is (20, 7)" in problem for problem in problems)


def test_a_false_comment_says_where_and_what(check: Callable[..., list[str]]) -> None:
    assert check("def f(x):\n    return x  # (T, Hq, D)\n", tensor(7, 48)) == [
        "example.py:2: comment says (T, Hq, D) = (7, 6, 8), it is (7, 48)"
    ]


def test_what_is_no_tensor_is_a_false_comment(check: Callable[..., list[str]]) -> None:
    assert check("def f(x):\n    return 3  # (T,)\n", None) == ["example.py:2: comment says (T,), it is of type int"]


def test_the_second_of_two_values_is_checked(check: Callable[..., list[str]]) -> None:
    source = "def f(x, y):\n    q, k = x, y  # (T, Hq) (T, Hkv)\n"
    assert check(source, tensor(7, 6), tensor(7, 6)) == ["example.py:2: comment says (T, Hkv) = (7, 3), it is (7, 6)"]


def test_a_wrong_number_of_shapes_is_found(check: Callable[..., list[str]]) -> None:
    x = tensor(7, 20)
    assert check("def f(x):\n    a, b, c = x, x, x  # (T, C) (T, C)\n", x) == ["example.py:2: 2 shapes for 3 values"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    if x is None:\n        y = x  # (T, C)\n",
        "def f(x):\n    return 1\n\ndef g(x):\n    return x  # (T, C)\n",
        "def f(x):\n    y = None  # (T, C)\n",
        "def f(x):\n    try:\n        y = [][0]  # (T, C)\n    except IndexError:\n        pass\n",
    ],
    ids=["a branch", "a function", "only None", "only an exception"],
)
def test_a_comment_that_never_ran_is_found(check: Callable[..., list[str]], source: str) -> None:
    problems = check(source, tensor(7, 20))
    assert [problem.split(": ", 1)[1] for problem in problems] == ["shape comment never ran"]


def test_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("def f(x):\n    if len(x.shape) == 1:\n        return x  # (T,)\n    return x  # (T, C)\n")
    checker, example = ShapeChecker([path], {"T", "C"}), load(path)
    for x in (tensor(7), tensor(7, 20)):
        assert checker.problems()
        with checker.sizes(T=7, C=20):
            example.f(x)
    assert checker.problems() == []


def test_an_unknown_letter_is_refused(check: Callable[..., list[str]]) -> None:
    with pytest.raises(ShapeCommentError, match=r"example.py:2: unknown dimension Q in \(T, Q\)"):
        check("def f(x):\n    return x  # (T, Q)\n", tensor(7, 20))


@pytest.mark.parametrize("source", ["def f(x):  # (T, C)\n    return x\n", "def f(x):\n    print(x)  # (T, C)\n"])
def test_a_shape_where_nothing_is_assigned_is_refused(check: Callable[..., list[str]], source: str) -> None:
    with pytest.raises(ShapeCommentError, match="where nothing is assigned or returned"):
        check(source, tensor(7, 20))


def test_sizes_that_could_be_confused_are_refused(check: Callable[..., list[str]]) -> None:
    source = "def f(x):\n    return x  # (T, 2*Hkv)\n"
    with pytest.raises(ShapeCommentError, match=r"T and 2 \* Hkv are both 6"):
        check(source, tensor(6, 6), sizes={"T": 6, "Hkv": 3})


def test_a_size_that_cannot_help_being_equal_may_be(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("def f(x):\n    return x  # (T, Hkv)\n")
    checker = ShapeChecker([path], set(SIZES))
    with checker.sizes(may_equal=["Hkv"], T=6, Hkv=6):
        load(path).f(tensor(6, 6))
    assert checker.problems() == []


def test_a_size_that_was_not_given_is_refused(check: Callable[..., list[str]]) -> None:
    with pytest.raises(ShapeCommentError, match="no size given for C"):
        check("def f(x):\n    return x  # (T, C)\n", tensor(7, 20), sizes={"T": 7})


def test_another_tracer_is_put_back(check: Callable[..., list[str]]) -> None:
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        check("def f(x):\n    return 1 // 0  # (T, C)\n", None)
    assert sys.gettrace() is before
