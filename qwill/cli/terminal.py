"""What may be written to a terminal, and how: untrusted text made harmless, notices on stderr, keys while waiting.

A model's output, a file name and a repository's texts may hold escape sequences; none reaches a terminal.
Knows nothing of models and answers. rich is imported only when a console is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ask",
    "can_redraw",
    "console_for",
    "dimmed",
    "harmless",
    "is_terminal",
    "keys_held_back",
    "notice",
    "print_json",
    "print_table",
    "show_cursor",
]

_CONTROL_PICTURES = 0x2400


def _harmless_table() -> dict[int, str]:
    table = {code: chr(_CONTROL_PICTURES + code) for code in range(32)}
    table |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    table |= {0x7F: "\u2421", ord("\r"): "", ord("\n"): "\n", ord("\t"): "\t"}
    # Direction overrides and isolates make a line read differently from what it says.
    table |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "")
    return table


_HARMLESS = _harmless_table()


def harmless(text: str) -> str:
    """`text` without control characters but newline and tab: an escape shows as ␛ and does nothing.

    Works on any piece of a text, as no character is judged by its neighbours.
    """
    return text.translate(_HARMLESS)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream; a closed stream is nobody's."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("dumb", "unknown")


def console_for(stream: TextIO) -> Console:
    """A rich console that never reads markup in our texts; no colour with NO_COLOR or when it is no terminal."""
    from rich.console import Console

    return Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False)


def dimmed(text: str, stream: TextIO) -> str:
    """`text` made harmless, and dimmed where the stream is a terminal and NO_COLOR is not set."""
    text = harmless(text)
    return f"\x1b[2m{text}\x1b[0m" if can_redraw(stream) and not os.environ.get("NO_COLOR") else text


def notice(text: str, stream: TextIO | None = None) -> None:
    """One remark to the user on stderr, dimmed on a terminal."""
    stream = sys.stderr if stream is None else stream
    print(dimmed(text, stream), file=stream, flush=True)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """`value` as JSON on stdout; what could steer a terminal stands there as \\uXXXX, which means the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    print(re.sub("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda found: f"\\u{ord(found[0]):04x}", text))


def show_cursor() -> None:
    """Bring the cursor back after a drawing that was cut off."""
    if can_redraw(sys.stdout):
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()


def ask(question: str, *, default: bool) -> bool:
    """A yes-or-no question on stderr, answered on standard input; an empty line takes the default."""
    print(f"{harmless(question)} [{'Y/n' if default else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return default if answer.strip() == "" and answer else answer.strip().lower() in ("y", "yes")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """Columns in line, one row a line; no frame, so that it can be read by other programs too."""
    from rich.cells import cell_len

    lines = [heads, *([harmless(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip(), file=out)


@contextlib.contextmanager
def keys_held_back() -> Iterator[None]:
    """While an answer is written, typed keys do not show; the next prompt gets them. Ctrl-C works, and drops them."""
    if sys.platform == "win32" or not is_terminal(sys.stdin):
        yield
        return
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    silent = termios.tcgetattr(keyboard)
    silent[0] &= ~termios.ICRNL
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(keyboard, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
