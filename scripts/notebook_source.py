"""The one source of a notebook in both languages: text in English and Chinese, and the code that they share.

    # 05 The KV cache: the same tokens, measured | KV 缓存：同样的词元，量一量
    <!-- en -->
    English Markdown. The first paragraph says what the notebook shows.
    <!-- zh -->
    The same in Chinese.
    ```python
    print("a cell that is run")
    ```

A ```python block is a cell. Any other block belongs to the text (write ```py for code that is shown and not run), and
is the same in both languages. Knows nothing of Jupyter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LANGUAGES", "Code", "NotebookError", "Source", "Text", "parse", "read_source"]

LANGUAGES = ("en", "zh")
MAX_CELL_LINES = 40

TITLE = re.compile(r"# (\d\d) (.+) \| (.+)")
MARKER = re.compile(r"<!-- (\w+) -->")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) ", re.MULTILINE)


class NotebookError(Exception):
    """A source that breaks a rule, a cell that failed, or a notebook that is not what its source makes."""


@dataclass(frozen=True)
class Text:
    """A section of text: language -> Markdown. `line` is its first line in the source."""

    line: int
    markdown: dict[str, str]


@dataclass(frozen=True)
class Code:
    """A cell of Python. `line` is that of its opening fence."""

    line: int
    python: str


@dataclass(frozen=True)
class Source:
    """A notebook: its name ("05-kv-cache"), language -> title, and its sections in order."""

    name: str
    titles: dict[str, str]
    sections: tuple[Text | Code, ...]

    @property
    def number(self) -> str:
        """The two digits that the name begins with."""
        return self.name[:2]

    def summary(self, language: str) -> str:
        """What the notebook shows: the first paragraph of its first text."""
        first = self.sections[0]
        assert isinstance(first, Text)
        return " ".join(first.markdown[language].split("\n\n")[0].split())


@dataclass(frozen=True)
class _Piece:
    """A part of the file as it stands there: `kind` is a language or "python"."""

    kind: str
    line: int
    text: str


def read_source(path: Path) -> Source:
    """Read one source.

    Raises:
        NotebookError: it breaks a rule; says in which line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _error(path, error.object[: error.start].count(b"\n") + 1, "not UTF-8") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Source:
    """The notebook that `text` describes; `path` gives its name, and is what errors call it.

    Raises:
        NotebookError: the text breaks a rule; says in which line.
    """
    title = TITLE.fullmatch(text.partition("\n")[0])
    if not title or not path.stem.startswith(f"{title[1]}-"):
        raise _error(path, 1, f'the first line is not "# {path.stem[:2]} English title | Chinese title"')
    pieces = _pieces(text.split("\n"), path)
    sections = tuple(_sections(pieces, path))
    if not any(isinstance(section, Code) for section in sections):
        raise _error(path, 1, "there is no ```python cell")
    return Source(path.stem, dict(zip(LANGUAGES, title.groups()[1:], strict=True)), sections)


def _pieces(lines: Sequence[str], path: Path) -> list[_Piece]:
    """Cut the lines after the title at language markers and around cells."""
    pieces: list[_Piece] = []
    kind, start, content = "", 2, list[str]()

    def finish() -> None:
        text = "\n".join(content).strip("\n")
        if kind:
            pieces.append(_Piece(kind, start, text))
        elif text.strip():
            raise _error(path, start, "text outside of a section: begin it with <!-- en -->")

    for number, line in enumerate(lines[1:], start=2):
        marker = MARKER.fullmatch(line)
        if kind == "python" and line != "```":
            content.append(line)
            continue
        if kind != "python" and line != "```python" and not marker:
            content.append(line)
            continue
        finish()
        kind = "python" if line == "```python" else marker[1] if marker else ""
        start, content = number, []
    if kind == "python":
        raise _error(path, start, "the cell has no closing ```")
    finish()
    return pieces


def _sections(pieces: Sequence[_Piece], path: Path) -> list[Text | Code]:
    """Pair the languages and check every section."""
    sections: list[Text | Code] = []
    rest = list(pieces)
    while rest:
        piece = rest.pop(0)
        if piece.kind == "python":
            sections.append(_code(piece, path))
            continue
        pair = [piece, *rest[: len(LANGUAGES) - 1]]
        if tuple(part.kind for part in pair) != LANGUAGES:
            raise _error(path, piece.line, "a section needs <!-- en --> and then <!-- zh -->")
        del rest[: len(LANGUAGES) - 1]
        sections.append(_text(pair, path))
    if not sections or isinstance(sections[0], Code):
        raise _error(path, 2, "a notebook begins with a section of text")
    return sections


def _code(piece: _Piece, path: Path) -> Code:
    try:
        statements = ast.parse(piece.text).body
    except SyntaxError as error:
        raise _error(path, piece.line + (error.lineno or 0), f"not Python: {error.msg}") from error
    if not statements:
        raise _error(path, piece.line, "the cell is empty")
    lines = piece.text.splitlines()
    if len(lines) > MAX_CELL_LINES:
        raise _error(path, piece.line, f"the cell has {len(lines)} lines, at most {MAX_CELL_LINES}")
    return Code(piece.line, piece.text)


def _text(pair: Sequence[_Piece], path: Path) -> Text:
    """The texts of one section, which must have the same headings and show the same code."""
    for piece in pair:
        if not piece.text.strip():
            raise _error(path, piece.line, f"the {piece.kind} text is empty")
    for what, parts in (
        ("headings", [HEADING.findall(FENCE.sub("", piece.text)) for piece in pair]),
        ("code", [FENCE.findall(piece.text) for piece in pair]),
    ):
        if any(part != parts[0] for part in parts):
            raise _error(path, pair[-1].line, f"the {what} of the two languages differ")
    return Text(pair[0].line, {piece.kind: piece.text for piece in pair})


def _error(path: Path, line: int, problem: str) -> NotebookError:
    return NotebookError(f"{path.name}:{line}: {problem}")
