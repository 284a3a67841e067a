"""Execute shape comments: `q = q.view(-1, Hq, D)  # (T, Hq, D)` is checked while the code runs.

    checker = ShapeChecker([path], letters)
    with checker.sizes(T=7, Hq=6, D=8): model(...)       # sizes that cannot be confused, e.g. all different
    checker.problems()                                   # false comments, and comments that never ran

A comment stands at the end of a line that assigns or returns (any line of it, if it is long). Several values, several
shapes: `q, k = …  # (T, Hq, D) (T, Hkv, D)`; one shape for several values holds for each. A dimension is a letter, a
number, or a sum, difference, product or floor quotient of such; `...` may come first. None has any shape, but does
not count as having run. Functions are traced, generators are not.

Needs nothing of torch: a value is anything with a `shape`.
"""

from __future__ import annotations

import ast
import io
import operator
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["ShapeChecker", "ShapeCommentError"]

OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
PARENTHESES = re.compile(r"\((?:[^()]|\([^()]*\))*\)")
Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


class ShapeCommentError(Exception):
    """A shape comment cannot be executed, or the sizes given would not tell a false one from a true one."""


@dataclass(frozen=True)
class Statement:
    """Assignments or a return that share lines with each other, and the shapes that their comment promises."""

    lines: range
    targets: tuple[ast.expr, ...]
    returns: bool
    comment_line: int
    shapes: tuple[ast.Tuple, ...]


class ShapeChecker:
    """Collects what is wrong with the shape comments of some files over any number of runs."""

    def __init__(self, paths: Sequence[Path], letters: set[str]) -> None:
        self._files = {str(path): statements(path, letters) for path in paths}
        self._ran: set[tuple[str, int]] = set()
        self._false: dict[str, None] = {}

    @contextmanager
    def sizes(self, *, may_equal: Sequence[str] = (), **sizes: int) -> Iterator[None]:
        """Check every comment whose line runs inside the `with` block; the letters have these sizes.

        `may_equal` names dimensions that this run cannot help having the size of another; have another run for them.

        Raises:
            ShapeCommentError: two different dimensions of the comments have the same size.
        """
        told_apart = {name: size for name, size in sizes.items() if name not in may_equal}
        refuse_confusion([s for file in self._files.values() for s in file.values()], told_apart)
        previous = sys.gettrace()
        sys.settrace(Tracer(self, sizes).enter)
        try:
            yield
        finally:
            sys.settrace(previous)

    def problems(self) -> list[str]:
        """Comments that were false, then comments that never ran, as "file:line: what"."""
        never = [
            f"{path}:{statement.comment_line}: shape comment never ran"
            for path, by_line in self._files.items()
            for statement in unique(by_line)
            if statement.shapes and (path, statement.comment_line) not in self._ran
        ]
        return [*self._false, *never]

    def statements_of(self, path: str) -> Mapping[int, Statement] | None:
        """Line -> statement of a file that is checked; None for any other file."""
        return self._files.get(path)

    def compare(self, path: str, statement: Statement, values: list[Any], sizes: Mapping[str, int]) -> None:
        """Note whether the values have the promised shapes."""
        where = f"{path}:{statement.comment_line}"
        shapes, values = paired(statement.shapes, values)
        if len(shapes) != len(values):
            self._ran.add((path, statement.comment_line))
            self._false[f"{where}: {len(shapes)} shapes for {len(values)} values"] = None
            return
        for shape, value in zip(shapes, values, strict=True):
            if value is None:
                continue
            self._ran.add((path, statement.comment_line))
            wanted = evaluate(shape, sizes)
            if not hasattr(value, "shape"):
                self._false[f"{where}: comment says {ast.unparse(shape)}, it is of type {type(value).__name__}"] = None
            elif not same(wanted, tuple(value.shape)):
                promised = f"{ast.unparse(shape)} = {shown(wanted)}"
                self._false[f"{where}: comment says {promised}, it is {shown(tuple(value.shape))}"] = None


class Tracer:
    """Looks into the frames of the checked files while they run."""

    def __init__(self, checker: ShapeChecker, sizes: Mapping[str, int]) -> None:
        self._checker = checker
        self._sizes = sizes

    def enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """The trace function for new frames: says who follows this frame, if anyone."""
        path = frame.f_code.co_filename
        by_line = self._checker.statements_of(path)
        if by_line is None or frame.f_code.co_name.startswith("<"):
            return None
        return Follower(self, path, by_line).follow

    def complete(self, path: str, statement: Statement, frame: FrameType, returned: Any) -> None:
        """Compare what a statement gave with its comment."""
        if statement.shapes:
            values = [returned] if statement.returns else [lookup(t, frame.f_locals) for t in statement.targets]
            self._checker.compare(path, statement, values, self._sizes)


class Follower:
    """Follows one call line by line: a statement is complete when the next one begins, or the call returns."""

    def __init__(self, tracer: Tracer, path: str, by_line: Mapping[int, Statement]) -> None:
        self._tracer = tracer
        self._path = path
        self._by_line = by_line
        self._current: Statement | None = None
        self._return: Statement | None = None

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function of this call."""
        if event == "exception":  # what was running did not complete
            self._current = self._return = None
        elif event == "line":
            statement = self._by_line.get(frame.f_lineno)
            if statement is not self._current:
                self._leave(frame)
            self._current = statement
        elif event == "return":
            self._leave(frame)
            if self._return:
                self._tracer.complete(self._path, self._return, frame, argument)
        return self.follow

    def _leave(self, frame: FrameType) -> None:
        """The current statement is over. A return's value shows only later, when `with` and `finally` are done."""
        if self._current and self._current.returns:
            self._return = self._current
        elif self._current:
            self._tracer.complete(self._path, self._current, frame, None)


def statements(path: Path, letters: set[str]) -> dict[int, Statement]:
    """Line -> the statement it belongs to; lines of no assignment and no return are left out.

    Raises:
        ShapeCommentError: a shape comment stands where nothing is assigned or returned, or uses an unknown letter.
    """
    text = path.read_text(encoding="utf-8")
    comments = shape_comments(text, letters, path)
    found: dict[int, Statement] = {}
    for lines, nodes in grouped(ast.parse(text)):
        here = [number for number in lines if number in comments]
        if len(here) > 1:
            raise ShapeCommentError(f"{path}:{here[1]}: a second shape comment for the statement of line {lines[0]}")
        line = here[0] if here else lines[0]
        targets = tuple(target for node in nodes for target in targets_of(node))
        returns = any(isinstance(node, ast.Return) for node in nodes)
        found.update(dict.fromkeys(lines, Statement(lines, targets, returns, line, comments.pop(line, ()))))
    if comments:
        raise ShapeCommentError(f"{path}:{min(comments)}: a shape comment where nothing is assigned or returned")
    return found


def grouped(tree: ast.AST) -> list[tuple[range, list[ast.stmt]]]:
    """Assignments and returns in order, those that share a line together."""
    wanted = [node for node in ast.walk(tree) if isinstance(node, Assignment | ast.Return)]
    groups: list[tuple[range, list[ast.stmt]]] = []
    for node in sorted(wanted, key=lambda node: (node.lineno, node.col_offset)):
        last = node.end_lineno or node.lineno
        if groups and node.lineno < groups[-1][0].stop:
            lines, nodes = groups.pop()
            groups.append((range(lines.start, max(lines.stop, last + 1)), [*nodes, node]))
        else:
            groups.append((range(node.lineno, last + 1), [node]))
    return groups


def targets_of(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, tuples taken apart; of `a = b = x` the first."""
    if not isinstance(node, Assignment):
        return []
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def shape_comments(text: str, letters: set[str], path: Path) -> dict[int, tuple[ast.Tuple, ...]]:
    """Line -> the shapes in its trailing comment, where there are any."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            comment = token.string.lstrip("# ")
            where = f"{path}:{token.start[0]}"
            shapes = [parse_shape(group, letters, where, comment) for group in PARENTHESES.findall(comment)]
            if any(shapes):
                found[token.start[0]] = tuple(shape for shape in shapes if shape)
    return found


def parse_shape(group: str, letters: set[str], where: str, comment: str) -> ast.Tuple | None:
    """A shape, or None for prose in parentheses; only a comment that opens with a shape must know all its letters."""
    try:
        node = ast.parse(group, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Tuple) or not all(is_dimension(item) for item in node.elts):
        return None
    unknown = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - letters
    if unknown and comment.startswith(group):
        raise ShapeCommentError(f"{where}: unknown dimension {', '.join(sorted(unknown))} in {group}")
    return None if unknown else node


def is_dimension(node: ast.expr) -> bool:
    """A letter, a whole number, the three dots, or arithmetic on dimensions."""
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS and is_dimension(node.left) and is_dimension(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) in (int, type(...)))


def evaluate(shape: ast.Tuple, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """The shape in numbers; the three dots stay."""
    return tuple(dimension(item, sizes) for item in shape.elts)


def dimension(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    """One dimension as a number, or the three dots."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](dimension(node.left, sizes), dimension(node.right, sizes))
    if isinstance(node, ast.Name):
        if node.id not in sizes:
            raise ShapeCommentError(f"no size given for {node.id}")
        return sizes[node.id]
    return node.value if isinstance(node, ast.Constant) else None


def same(wanted: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Equal, where leading three dots stand for any number of dimensions."""
    if wanted[:1] == (...,):
        return len(found) >= len(wanted) - 1 and wanted[1:] == found[len(found) - len(wanted) + 1 :]
    return wanted == found


def shown(shape: tuple[Any, ...]) -> str:
    """A shape as text."""
    return str(shape).replace("Ellipsis", "...")


def paired(shapes: tuple[ast.Tuple, ...], values: list[Any]) -> tuple[tuple[ast.Tuple, ...], list[Any]]:
    """Shapes and values one to one: a tuple of values is taken apart, a single shape is for every value."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = list(values[0])
    return (shapes * len(values) if len(shapes) == 1 else shapes), values


def lookup(target: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value that was assigned to a name or an attribute; None where the name has gone."""
    if isinstance(target, ast.Name):
        return names.get(target.id)
    if isinstance(target, ast.Attribute):
        return getattr(lookup(target.value, names), target.attr, None)
    raise ShapeCommentError(f"line {target.lineno}: the shape of {ast.unparse(target)} cannot be checked")


def refuse_confusion(checked: Sequence[Statement], sizes: Mapping[str, int]) -> None:
    """Raise ShapeCommentError when two dimensions that are written differently come out equal."""
    written = {ast.unparse(item): item for s in checked for shape in s.shapes for item in shape.elts}
    by_size: dict[int, str] = {}
    for text, node in written.items():
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        if not names or not names <= sizes.keys():
            continue
        size = dimension(node, sizes)
        if by_size.setdefault(size, text) != text:
            raise ShapeCommentError(f"{by_size[size]} and {text} are both {size}: choose other sizes")


def unique(by_line: Mapping[int, Statement]) -> list[Statement]:
    """Each statement once, in order."""
    return list({statement.comment_line: statement for statement in by_line.values()}.values())
