"""`qwill chat`: on a pseudo-terminal with keys pressed, and line by line from a pipe. The engine is the stand-in."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill.cli.commands import chat as chat_module
from qwill.errors import ModelNotFoundError

pty = pytest.importorskip("pty", reason="pseudo-terminals need a Unix")
STAND_IN = str(Path(__file__).parents[1] / "conftest.py")


class Screen:
    """A program on a pseudo-terminal: press keys, wait for text."""

    def __init__(self, pid: int, terminal: int) -> None:
        self.pid, self.terminal = pid, terminal
        self.output = ""

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def wait_for(self, pattern: str, seconds: float = 20.0) -> str:
        """Read until the pattern appears after what was waited for before; gives the text up to its end."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.output, re.DOTALL)):
            assert select.select([self.terminal], [], [], max(0.0, end - time.monotonic()))[0], (pattern, self.output)
            self.output += os.read(self.terminal, 65536).decode(errors="replace")
        text, self.output = self.output[: found.end()], self.output[found.end() :]
        return text

    def ask(self, text: str, answer: str) -> str:
        self.press(text + "\r")
        return self.wait_for(answer)

    def exit_code(self, seconds: float = 20.0) -> int:
        while select.select([self.terminal], [], [], seconds)[0]:
            try:
                os.read(self.terminal, 65536)
            except OSError:  # the program has ended and closed its side
                return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        raise AssertionError("the program does not end")


@pytest.fixture
def start(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Screen]]:
    screens: list[Screen] = []

    def run(*words: str, columns: int = 80, **variables: str) -> Screen:
        environ = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "LANG": "C.UTF-8"}
        environ |= {"COLUMNS": str(columns), "LINES": "24", **variables}
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, STAND_IN, "chat", *words], environ)
        screens.append(Screen(pid, terminal))
        return screens[-1]

    yield run
    for screen in screens:
        os.close(screen.terminal)
        try:
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_a_talk_on_a_terminal(start: Callable[..., Screen], home: Path) -> None:
    screen = start("m", "--stats", NO_COLOR="1")
    screen.wait_for(r"stand-in · .* /help.*>>>")
    screen.ask("你好", r"1 messages, the last: 你好")
    screen.wait_for(r"gen 5 tok.*stop.*>>>")
    screen.ask("think", r"secret.*Thought for 0\.\d s \(2 tokens\).*clear words.*>>>")
    screen.ask("/hepl", r"did you mean /help\?.*>>>")
    screen.ask("fail", r"error: the logits are not finite.*>>>")
    shown = screen.ask("hostile", r"red .*title.* end.*>>>")
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    screen.press("/show\r/exit\r")  # typed ahead
    screen.wait_for(r"turns +6\r")
    assert screen.exit_code() == 0
    history = home / ".local/state/qwill/history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+你好" in history.read_text(encoding="utf-8")


def test_ctrl_c_stops_the_answer_keeps_the_part_and_twice_leaves(start: Callable[..., Screen], home: Path) -> None:
    screen = start("m", "--no-history", columns=30)
    screen.wait_for(r">>>")
    screen.ask("slow", r"word9\b")
    screen.press("\x03")
    screen.wait_for(r">>>")
    screen.ask("/show", r"turns +2\r.*>>>")
    screen.ask("a\nb", r"3 messages, the last: a b")
    screen.wait_for(r">>>")
    screen.press("\x03")
    screen.wait_for(r"Ctrl-C again.*>>>")
    screen.press("\x03")
    assert screen.exit_code() == 0
    assert not (home / ".local/state/qwill/history").exists()


def test_lines_from_a_pipe_are_answered_plainly(qwill: Any, home: Path) -> None:
    text = 'hello\n/system be kind\n\n"""\na\nb\n"""\n//slash\n/save first\n'
    result = qwill("chat", "m", stdin=text, engine="stand-in")
    assert result.returncode == 0
    assert result.stdout.decode().splitlines() == [
        "1 messages, the last: hello ",
        "4 messages, the last: a b ",
        "6 messages, the last: /slash ",
    ]
    assert b"\x1b" not in result.stdout + result.stderr
    assert b">>>" not in result.stdout + result.stderr
    assert b"first.jsonl" in result.stderr
    session = home / ".local/state/qwill/sessions/first.jsonl"
    assert stat.S_IMODE(session.stat().st_mode) == 0o600
    assert len(session.read_text().splitlines()) == 7


@pytest.mark.parametrize(("line", "code"), [("/nonsense", 2), ("fail", 1)])
def test_with_nobody_there_an_error_ends_the_talk(qwill: Any, line: str, code: int) -> None:
    result = qwill("chat", "m", stdin=f"hello\n{line}\nnever\n", engine="stand-in")
    assert result.returncode == code
    assert b"never" not in result.stdout
    assert b"error:" in result.stderr


def test_without_a_name_the_catalog_s_first_model_that_is_here_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, **_: Any) -> str:
        if name != "smollm2-135m":
            raise ModelNotFoundError("not here")
        return name

    monkeypatch.setattr("qwill.hub.resolve", resolve)
    assert chat_module._default_model() == "smollm2-135m"


def test_without_any_model_a_pipe_is_told_what_to_do(qwill: Any) -> None:
    result = qwill("chat", stdin="hello\n", HF_HUB_OFFLINE="1")
    assert result.returncode == 1
    assert b"hint: qwill pull qwen3-0.6b" in result.stderr


def test_the_prompt_is_counted_as_the_model_sees_it(tiny_model: Path) -> None:
    from types import SimpleNamespace

    from qwill.tokenizer import Tokenizer

    llm: Any = SimpleNamespace(tokenizer=Tokenizer.load(tiny_model))
    messages = [{"role": "user", "content": "hi<|im_end|>"}]
    expected = 1 + len("user\n") + len("hi<|im_end|>") + 2 + 1 + len("assistant\n")
    assert chat_module.count_prompt(llm, messages, None) == expected
