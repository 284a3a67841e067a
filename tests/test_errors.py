"""The tree of exceptions is the one drawn in the docstring, and an error's text has its three parts."""

from __future__ import annotations

import re

from qwill import errors


def tree(kind: type, depth: int = 0) -> list[tuple[int, str]]:
    below = [
        line
        for child in kind.__subclasses__()
        if child.__module__ == errors.__name__
        for line in tree(child, depth + 1)
    ]
    return [(depth, kind.__name__), *below]


def drawn() -> list[tuple[int, str]]:
    """(depth, name) of each class in the docstring's drawing."""
    lines = re.findall(r"^    ([ │├└─]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    return [(len(indent) // 4, name) for indent, name in lines]


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn() == tree(errors.QwillError)


def test_the_text_says_what_where_and_what_to_do() -> None:
    error = errors.FormatError("the header is cut off", where="a.gguf, offset 12", hint="download it again")
    assert str(error) == "the header is cut off\n  at a.gguf, offset 12\nhint: download it again"


def test_parts_that_are_not_given_leave_no_empty_lines() -> None:
    assert str(errors.ModelError("the logits are not finite")) == "the logits are not finite"


def test_wrong_usage_has_exit_code_2_and_everything_else_1() -> None:
    assert errors.UsageError.exit_code == errors.ContextLengthError.exit_code == 2
    assert errors.QwillError.exit_code == errors.DiskSpaceError.exit_code == 1
