"""How an answer looks while it comes: plain text anywhere, laid-out markdown on a terminal.

On a terminal, what is finished is written once and goes to the scrollback; only the last block is drawn again and
again, and never more of it than fits on the screen. Thinking is drawn dimmed in that same place and then folded to
one line. The model's text is untrusted: nothing of it reaches a terminal before `harmless`. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from qwill.cli.markdown import Block, BlockSplitter
from qwill.cli.reply import View
from qwill.cli.terminal import can_redraw, console_for, dimmed, harmless, is_terminal

__all__ = ["LiveRegion", "PlainView", "TerminalView", "view_for"]

REDRAW_SECONDS = 0.08
PAUSE_PER_DRAWING = 9.0
"""A block that takes long to lay out is drawn less often: so many times what the last drawing took lie between."""
THINKING_LINES = 8
THINKING_KEPT = 4000
"""Characters: more than THINKING_LINES show."""


def view_for(out: TextIO, err: TextIO, *, markdown: bool) -> View:
    """The view for these streams: answers go to `out`, thinking and its summary to `err`."""
    if can_redraw(out):
        return TerminalView(console_for(out), console_for(err), markdown=markdown)
    return PlainView(out, err)


class PlainView:
    """Text as it comes. Thinking shows dimmed, and only where `err` is a terminal."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._clean = harmless if is_terminal(out) else str
        self._at_line_start = True
        self._thinking_tokens = 0

    def thinking(self, text: str, tokens: int) -> None:
        """Write it dimmed."""
        if is_terminal(self._err):
            self._err.write(dimmed(text, self._err))
            self._err.flush()
            self._thinking_tokens += tokens

    def content(self, text: str) -> None:
        """Write it."""
        self._end_thinking()
        self._out.write(self._clean(text))
        self._out.flush()
        self._at_line_start = text.endswith("\n")

    def close(self) -> None:
        """End the last line."""
        self._end_thinking()
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
        self._at_line_start = True

    def _end_thinking(self) -> None:
        if self._thinking_tokens:
            self._err.write(f"\n({self._thinking_tokens} tokens of thinking)\n\n")
            self._err.flush()
        self._thinking_tokens = 0


class TerminalView:
    """Laid-out markdown (or plain text) on a terminal; thinking is folded when it is over."""

    def __init__(self, out: Console, err: Console, *, markdown: bool) -> None:
        self._out, self._err, self._markdown = out, err, markdown
        self._live = LiveRegion(out)
        self._live_thinking = LiveRegion(err)
        self._blocks = BlockSplitter()
        self._written = ""  # "" nothing yet, else the last character of plain text or block
        self._thought = ""
        self._thinking_tokens = 0
        self._thinking_began = 0.0

    def thinking(self, text: str, tokens: int) -> None:
        """Draw the end of it, dimmed."""
        self._thinking_began = self._thinking_began or time.monotonic()
        self._thinking_tokens += tokens
        self._thought = (self._thought + harmless(text))[-THINKING_KEPT:]
        if self._err.is_terminal:
            self._live_thinking.draw(_Tail(Text(self._thought.strip(), style="dim"), THINKING_LINES))

    def content(self, text: str) -> None:
        """Write what is finished, draw what is not."""
        self._fold_thinking()
        text = harmless(text)
        if not self._markdown:
            self._out.file.write(text)
            self._out.file.flush()
            self._written = text[-1:] or self._written
            return
        self._write_blocks(self._blocks.push(text))
        rest = _visible_end(self._blocks.rest, self._out.height)
        if rest:
            self._live.draw(_Tail(self._with_gap(Block(rest)), self._out.height - 2))

    def close(self) -> None:
        """Write the last block, or end the last line."""
        self._fold_thinking()
        if self._markdown:
            self._write_blocks([self._blocks.finish()])
            self._live.stop()
        elif self._written not in ("", "\n"):
            self._out.file.write("\n")
            self._out.file.flush()
        self._written = ""

    def _write_blocks(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if block:
                self._live.commit(self._with_gap(Block(block)))
                self._written = "\n"

    def _with_gap(self, block: Block) -> RenderableType:
        return Group(Text(), block) if self._written else block

    def _fold_thinking(self) -> None:
        if not self._thinking_began:
            return
        self._live_thinking.stop()
        seconds = time.monotonic() - self._thinking_began
        self._err.print(Text(f"Thought for {seconds:.1f} s ({self._thinking_tokens} tokens)", style="dim"))
        self._thinking_began, self._thinking_tokens, self._thought = 0.0, 0, ""


class LiveRegion:
    """The lines at the end of the screen that may still change; redrawn a few times a second at most."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._next_draw = 0.0

    def draw(self, renderable: RenderableType) -> None:
        """Show `renderable` in place of what was drawn before, unless that was only a moment ago."""
        began = time.monotonic()
        if began < self._next_draw:
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="visible",
            )
            self._live.start()
        self._live.update(renderable, refresh=True)
        ended = time.monotonic()
        self._next_draw = ended + max(REDRAW_SECONDS, PAUSE_PER_DRAWING * (ended - began))

    def commit(self, renderable: RenderableType) -> None:
        """Take away what was drawn and write `renderable` for good."""
        self.stop()
        self._console.print(renderable)

    def stop(self) -> None:
        """Take away what was drawn."""
        if self._live is not None:
            self._live.stop()
        self._live, self._next_draw = None, 0.0


class _Tail:
    """The last lines of something."""

    def __init__(self, renderable: RenderableType, lines: int) -> None:
        self._renderable = renderable
        self._lines = max(1, lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._renderable, options, pad=False)[-self._lines :]:
            yield from line
            yield Segment.line()


def _visible_end(block: str, height: int) -> str:
    """What of an unfinished block is worth laying out: of a long code block only its last lines, as code."""
    lines = block.split("\n")
    if len(lines) <= height or not lines[0].lstrip().startswith(("```", "~~~")):
        return block
    return "\n".join([lines[0], *lines[-height:]])
