"""`qwill chat`: on a pseudo-terminal with keys pressed, and line by line from a pipe. The engine is the stand-in."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill.cli import main
from qwill.cli.commands import chat as chat_module
from qwill.cli.reader import LineReader
from qwill.errors import ModelError, ModelNotFoundError, UsageError

pty = pytest.importorskip("pty", reason="pseudo-terminals need a Unix")


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
def start(stand_in_program: list[str]) -> Iterator[Callable[..., Screen]]:
    screens: list[Screen] = []

    def run(*words: str, columns: int = 80, **variables: str) -> Screen:
        environ = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "LANG": "C.UTF-8"}
        environ |= {"COLUMNS": str(columns), "LINES": "24", **variables}
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [*stand_in_program, "chat", *words], environ)
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
    screen.ask("never", r"hm")
    screen.press("\x03")
    screen.wait_for(r"not kept.*>>>")
    screen.ask("a\nb", r"3 messages, the last: a b")
    screen.wait_for(r">>>")
    screen.press("\x03")
    screen.wait_for(r"Ctrl-C again.*>>>")
    screen.press("\x03")
    assert screen.exit_code() == 0
    assert not (home / ".local/state/qwill/history").exists()


def test_a_signal_to_end_leaves_the_terminal_as_it_was(start: Callable[..., Screen]) -> None:
    screen = start("m", "--no-history")
    screen.wait_for(r">>>")
    screen.ask("slow", r"word9\b")
    assert not termios.tcgetattr(screen.terminal)[3] & termios.ECHO
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.exit_code() == 143
    assert termios.tcgetattr(screen.terminal)[3] & termios.ECHO


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


def test_lines_from_a_pipe_are_utf_8_whatever_the_locale_says(qwill: Any) -> None:
    result = qwill("chat", "m", stdin="é\n", engine="stand-in", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stdout == b"1 messages, the last: ? \n"


@pytest.mark.parametrize("obstacle", [".local/state/qwill/history/", ".local/state/qwill"])
def test_without_a_place_for_it_the_talk_goes_on_without_history(
    start: Callable[..., Screen], home: Path, obstacle: str
) -> None:
    (home / ".local/state").mkdir(parents=True)
    if obstacle.endswith("/"):
        (home / obstacle).mkdir(parents=True)
    else:
        (home / obstacle).touch()
    screen = start("m")
    screen.wait_for(r"typed lines are not kept.*>>>")
    screen.ask("hi", r"1 messages, the last: hi.*>>>")
    screen.press("\x04")
    assert screen.exit_code() == 0


@pytest.fixture
def words_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has no tokenizer: its prompts are counted in messages."""
    monkeypatch.setattr(chat_module, "count_prompt", lambda _llm, messages, _think: len(messages))


@pytest.mark.usefixtures("words_count")
@pytest.mark.parametrize(("line", "error"), [("/nonsense", UsageError), ("fail", ModelError)])
def test_with_nobody_there_an_error_ends_the_talk(
    stand_in: Any, home: Path, capsys: pytest.CaptureFixture[str], line: str, error: type[Exception]
) -> None:
    talk = chat_module.new_talk(stand_in, {})
    with pytest.raises(error):
        chat_module.converse(talk, LineReader(io.TextIOWrapper(io.BytesIO(f"hello\n{line}\nnever\n".encode()))))
    assert "never" not in capsys.readouterr().out


@pytest.mark.usefixtures("words_count")
def test_ctrl_c_with_nobody_there_ends_the_talk_with_130(stand_in: Any, home: Path) -> None:
    talk = chat_module.new_talk(stand_in, {})
    assert chat_module.converse(talk, LineReader(io.TextIOWrapper(io.BytesIO(b"interrupt\nnever\n")))) == 130
    assert talk.conversation.turns[-1]["content"] == "half "


def test_without_a_name_the_catalog_s_first_model_that_is_here_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, **_: Any) -> str:
        if name != "smollm2-135m":
            raise ModelNotFoundError("not here")
        return name

    monkeypatch.setattr("qwill.hub.resolve", resolve)
    assert chat_module._default_model() == "smollm2-135m"


def test_without_any_model_a_pipe_is_told_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["chat"]) == 1
    assert "hint: qwill pull qwen3-0.6b" in capsys.readouterr().err


def test_the_prompt_is_counted_as_the_model_sees_it(tiny_model: Path) -> None:
    from types import SimpleNamespace

    from qwill.tokenizer import Tokenizer

    llm: Any = SimpleNamespace(tokenizer=Tokenizer.load(tiny_model))
    messages = [{"role": "user", "content": "hi<|im_end|>"}]
    expected = 1 + len("user\n") + len("hi<|im_end|>") + 2 + 1 + len("assistant\n")
    assert chat_module.count_prompt(llm, messages, None) == expected
