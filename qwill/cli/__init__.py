"""The command line: `qwill COMMAND …`. Finds the command, runs it, and turns errors into an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 and 129 by SIGTERM and SIGHUP. Answers and
results go to stdout, all else to stderr. `qwill --help` needs neither torch nor the option parser: a command's
module is imported when that command is asked for. Must not know what any command does.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from qwill import __version__
from qwill.cli.terminal import harmless, show_cursor
from qwill.errors import QwillError, UsageError

__all__ = ["ALIASES", "COMMANDS", "main"]

COMMANDS = {
    "run": "answer one prompt, and what comes on standard input",
    "chat": "talk with a model in the terminal",
    "batch": "answer a file of requests in OpenAI's batch format",
    "pull": "download a model",
    "list": "list the models on this machine",
    "rm": "delete a model from this machine",
    "verify": "check a model's files: sizes, hashes, headers, shapes, values",
    "quantize": "make a folder of a model in 4 or 8 bits, which loads at once",
    "inspect": "show a model's structure and memory needs, without loading it",
    "trace": "time every op of an answer, and keep what it computed",
    "explain": "show what happens inside while a prompt is answered, as one HTML page",
    "doctor": "report versions, processor, memory, folders and settings",
    "eval": "measure what quantizing a model costs in quality",
    "bench": "measure speed, and compare with transformers",
}
"""Name -> one line of help. `qwill.cli.commands.NAME` has `register(app)`, which adds the command's functions."""

ALIASES = {"ls": "list", "show": "inspect", "remove": "rm"}

ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why a standard stream cannot be written; such an error, unlike a file's, names no file."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is without the program's name, sys.argv's by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    with _every_stream_open():
        _accept_any_text()
        return _run(words)


def _run(words: list[str]) -> int:
    """Run the command; whatever it raises becomes an exit code."""
    try:
        with _signals_end_in_order():
            code = _dispatch(words)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        show_cursor()
        return EXIT_INTERRUPTED
    except _Ended as ended:
        with contextlib.suppress(OSError):
            show_cursor()
        return 128 + ended.signal
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_FAILED
    except QwillError as error:
        _report(error, words)
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            _discard_stdout()
            _report(QwillError(f"cannot write the output: {error.strerror}"), words)
            return EXIT_FAILED
        what = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        _report(QwillError(what, hint="this is a bug in qwill; run it again with -v for the details"), words)
        return EXIT_FAILED


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("--help", "-h"):
        print(_help_page())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"qwill {__version__}")
        return 0
    name = ALIASES.get(words[0], words[0])
    if name not in COMMANDS:
        raise _unknown_command(name)
    parser = importlib.import_module("qwill.cli.parser")
    return int(parser.run_command(name, words[1:]))


def _help_page() -> str:
    rows = "\n".join(f"  {name:<9}{line}" for name, line in COMMANDS.items())
    return (
        "Usage: qwill COMMAND …\n\nQwen models, written out by hand: to read, and to run on an ordinary CPU.\n\n"
        f"Commands:\n{rows}\n\n"
        "  qwill COMMAND --help   the command's flags\n"
        "  qwill --version        the version\n\n"
        'Try:  qwill run qwen3-0.6b "Why is the sky blue?"'
    )


def _unknown_command(name: str) -> UsageError:
    kind = "flag" if name.startswith("-") else "command"
    near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES, "--help", "--version"], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "qwill --help lists the commands"
    return UsageError(f"unknown {kind} {name[:100]!r}", hint=hint)


def _report(error: QwillError, words: list[str]) -> None:
    """Print an error as `error: what`, where and `hint: …`; the traceback only with -v."""
    with contextlib.suppress(OSError):
        if _verbose(words):
            traceback.print_exc(file=sys.stderr)
        print(harmless(f"error: {error}"), file=sys.stderr)


def _verbose(words: list[str]) -> bool:
    flags = words[: words.index("--")] if "--" in words else words
    wanted = any(word in ("-v", "--verbose", "-vq", "-qv") for word in flags)
    return wanted or os.environ.get("QWILL_VERBOSE", "").lower() in ("1", "true", "yes")


class _Ended(BaseException):
    """A signal asks the program to end; an exception, so that the terminal is put in order on the way out."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@contextlib.contextmanager
def _signals_end_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP an `_Ended`; one that is ignored (nohup) stays so, and a second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _Ended(number)

    caught = [number for number in ENDING_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _every_stream_open() -> Iterator[None]:
    """Python has None for a standard stream that was closed (`2>&-`): read and write nothing there instead."""
    modes = {"stdin": "r", "stdout": "w", "stderr": "w"}
    with contextlib.ExitStack() as opened:
        for name in [name for name in modes if getattr(sys, name) is None]:
            setattr(sys, name, opened.enter_context(open(os.devnull, modes[name], encoding="utf-8")))
            opened.callback(setattr, sys, name, None)
        yield


def _accept_any_text() -> None:
    """A terminal that cannot show a character shows a question mark; it is no reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _discard_stdout() -> None:
    """The reader has gone: let Python's own flush at exit go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
