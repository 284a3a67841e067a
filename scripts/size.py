"""Hold the size rule: a function of at most 50 lines, a file of at most 400, at most 5 positional parameters.

    scripts/size.py             every Python file of the project; prints what is too big, exit code 1 if anything is

What may be bigger stands in EXCEPTIONS, each with its reason; an exception that is no longer needed is reported too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 400
MAX_POSITIONAL = 5

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("qwill", "tests", "scripts", "benchmarks")

EXCEPTIONS: dict[str, str] = {}
"""What is too big -> why it may be. A key is "folder/file.py" or "folder/file.py:Class.function"."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Finding:
    """Something too big: the key that an exception for it would have, and what is wrong."""

    key: str
    problem: str


def main() -> int:
    """Check the whole project. Returns the exit code."""
    findings = [finding for path in python_files(ROOT) for finding in check_file(path, ROOT)]
    problems = unexcused(findings, EXCEPTIONS)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def python_files(root: Path) -> list[Path]:
    """Every Python file that the rule is about."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def check_file(path: Path, root: Path) -> Iterator[Finding]:
    """Everything in one file that is too big."""
    name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield Finding(name, f"{lines} lines, at most {MAX_FILE_LINES}")
    for qualified, node in functions(ast.parse(text)):
        yield from check_function(f"{name}:{qualified}", node, by_position=not name.startswith("tests/"))


def check_function(key: str, node: Function, *, by_position: bool) -> Iterator[Finding]:
    """Too many lines (decorators not counted) or parameters; pytest passes its fixtures by name, so not there."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > MAX_FUNCTION_LINES:
        yield Finding(key, f"{lines} lines, at most {MAX_FUNCTION_LINES}")
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    count = len(names) - (names[:1] in (["self"], ["cls"]))
    if by_position and count > MAX_POSITIONAL:
        yield Finding(key, f"{count} positional parameters, at most {MAX_POSITIONAL}")


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below a node with its qualified name, nested ones included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        inner = f"{prefix}{child.name}." if isinstance(child, Function | ast.ClassDef) else prefix
        yield from functions(child, inner)


def unexcused(findings: list[Finding], exceptions: Mapping[str, str]) -> list[str]:
    """The findings that have no exception, and the exceptions that have no finding, in words."""
    needed = {finding.key for finding in findings}
    too_big = [f"{finding.key}: {finding.problem}" for finding in findings if finding.key not in exceptions]
    stale = [f"{key}: no longer too big; take it off the exceptions" for key in exceptions if key not in needed]
    return too_big + stale


if __name__ == "__main__":
    sys.exit(main())
