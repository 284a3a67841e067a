"""Markdown that grows: cut into finished blocks and a last block that may still change; and its look.

A block is finished when no later text can change how it is laid out. So a long answer is laid out once, block by
block, and only its last block again and again. Knows nothing of models and terminals' state.
"""

from __future__ import annotations

import re
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.text import Text

__all__ = ["Block", "BlockSplitter"]

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_INDENTED_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])([ \t]*\1){2,}[ \t]*$")
_LIST_ITEM = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])(\s|$)")
_LIST_START = re.compile(r" {0,3}([-+*]|1[.)])\s+\S")  # what can begin a list right after a paragraph
_INDENT = re.compile(r"\s{2,}\S")


class BlockSplitter:
    """Takes a text piece by piece and gives out its blocks as they are finished."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # complete lines of the last block
        self._partial = ""  # the line that has no end yet
        self._fence = ""  # what closes the open code block
        self._in_list = False  # or perhaps in one: then nothing is cut that could belong to it

    def push(self, text: str) -> list[str]:
        """Add text; return the blocks that it finished, without the blank lines between them."""
        finished: list[str] = []
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            finished += self._add(line)
        return finished

    @property
    def rest(self) -> str:
        """The last block as far as it has come."""
        return "\n".join([*self._lines, self._partial]).rstrip()

    def finish(self) -> str:
        """The last block, at the end of the text; empty when nothing is left."""
        rest = self.rest
        self._lines, self._partial, self._fence, self._in_list = [], "", "", False
        return rest

    def _add(self, line: str) -> list[str]:
        if self._fence:
            return self._add_code(line)
        finished = self._take() if self._begins_new_block(line) else []
        if not line.strip() and not self._lines:
            return finished
        if not self._lines and _RULE.match(line):
            return [*finished, line]
        self._in_list = self._in_list or bool(_LIST_ITEM.match(line))
        fence = (_INDENTED_FENCE if self._in_list else _FENCE).match(line)
        self._fence = fence[1] if fence else ""
        self._lines.append(line)
        return finished + (self._take() if _HEADING.match(line) and not self._in_list else [])

    def _add_code(self, line: str) -> list[str]:
        self._lines.append(line)
        mark = line.strip()
        if len(mark) < len(self._fence) or set(mark) != {self._fence[0]}:
            return []
        self._fence = ""
        return [] if self._in_list else self._take()

    def _begins_new_block(self, line: str) -> bool:
        """Whether the lines so far are a finished block, now that `line` follows them."""
        if not self._lines:
            return False
        if not self._in_list:
            return not line.strip() or any(start.match(line) for start in (_FENCE, _HEADING, _LIST_START))
        # A list goes on after a blank line with another item or an indented line.
        after_blank = not self._lines[-1].strip()
        goes_on = bool(_LIST_ITEM.match(line) or _INDENT.match(line))
        if after_blank:
            return bool(line.strip()) and not goes_on
        return not goes_on and bool(_FENCE.match(line) or _HEADING.match(line))

    def _take(self) -> list[str]:
        block = "\n".join(self._lines).rstrip()
        self._lines, self._in_list = [], False
        return [block] if block else []


class _PlainHeading(Heading):
    """A heading at the left edge: bold, and underlined when it is a big one."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        big = self.tag in ("h1", "h2")
        yield Text.assemble(self.text, style="bold underline" if big else "bold", overflow="fold")


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _PlainHeading}


class Block:
    """One block of markdown, ready to be printed by rich.

    HTML shows as text, an address shows beside its link, a line break stays one (models write verse and
    addresses so), and lines end where their text ends.
    """

    def __init__(self, text: str) -> None:
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
        self._markdown = _Markdown("", hyperlinks=False, code_theme="ansi_dark")
        self._markdown.parsed = parser.parse(text)
        for token in self._markdown.parsed:
            for child in token.children or ():
                child.type = "hardbreak" if child.type == "softbreak" else child.type

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [_without_filling(line) for line in console.render_lines(self._markdown, options, pad=False)]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        for line in lines:
            yield from line
            yield Segment.line()


def _without_filling(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        text, style, control = kept[-1]
        kept[-1] = Segment(text.rstrip(), style, control)
    return kept
