"""The command line as a whole: help without torch, exit codes, errors as three lines, quiet ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qwill import __version__
from qwill.cli import COMMANDS, main
from qwill.errors import AccessError


def test_help_is_quick_and_imports_no_torch(qwill: Any) -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = qwill("--help")
        times.append(time.perf_counter() - start)
    assert result.returncode == 0
    assert all(name in result.stdout.decode() for name in COMMANDS)
    assert min(times) < 0.3
    code = (
        "import sys; from qwill.cli import main; main(['--help']);print({'torch', 'rich', 'cyclopts'} & {*sys.modules})"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.endswith("set()\n")


def test_help_of_every_command_imports_no_torch(home: object) -> None:
    code = (
        "import sys; from qwill.cli import COMMANDS, main\n"
        "for command in COMMANDS:\n"
        "    assert main([command, '--help']) == 0, command\n"
        "    assert not {'torch', 'transformers'} & {*sys.modules}, command\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(f"qwill {command}" in result.stdout for command in COMMANDS)


def test_the_version_is_the_package_s(qwill: Any) -> None:
    assert qwill("--version").stdout.decode() == f"qwill {__version__}\n"


@pytest.mark.parametrize(
    ("words", "near"),
    [(["caht"], "chat"), (["pul", "x"], "pull"), (["--hlep"], "--help"), (["inspct", "m"], "inspect")],
)
def test_an_unknown_command_names_the_nearest(words: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"did you mean {near}?" in err


def test_no_command_and_help_of_help_show_the_commands(capsys: pytest.CaptureFixture[str], home: object) -> None:
    assert main([]) == 0
    assert main(["help"]) == 0
    assert main(["help", "pull"]) == 0
    assert "qwill pull" in capsys.readouterr().out


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_words: list[str]) -> int:
        raise error

    monkeypatch.setattr("qwill.cli._dispatch", fail)


def test_an_error_of_ours_is_what_where_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(AccessError("no permission", where="org/name", hint="log in"), monkeypatch)
    assert main(["pull"]) == 1
    assert capsys.readouterr().err == "error: no permission\n  at org/name\nhint: log in\n"


def test_an_unexpected_error_is_one_line_and_a_hint_and_a_traceback_only_with_v(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ZeroDivisionError("division\nby zero"), monkeypatch)
    assert main(["run"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "error: unexpected ZeroDivisionError: division by zero"
    assert "-v" in err.splitlines()[1]
    assert main(["run", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_escape_sequences_in_an_error_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(AccessError("name \x1b[31m\x07 of a file", where="a\rb"), monkeypatch)
    assert main(["pull"]) == 1
    assert not {"\x1b", "\x07", "\r"} & {*capsys.readouterr().err}


def test_ctrl_c_is_130_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main(["run"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_goes_away_is_no_matter(stand_in_program: list[str]) -> None:
    command = f"{' '.join(stand_in_program)} run m slow </dev/null | head -c 10"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=20, check=False)
    assert result.stdout == b"word0 word"
    assert result.stderr == b""


def test_a_character_that_the_terminal_cannot_show_is_no_reason_to_stop(qwill: Any) -> None:
    result = qwill("run", "m", "你好", engine="stand-in", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert b"??" in result.stdout


@pytest.mark.parametrize("streams", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("run m hello", 0), ("list", 0), ("verify nothing-here", 1)])
def test_a_closed_standard_stream_is_no_matter(
    stand_in_program: list[str], streams: str, words: str, code: int
) -> None:
    command = f"{' '.join(stand_in_program)} {words} {streams}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=30, check=False)
    assert result.returncode == code
    assert b"AttributeError" not in result.stderr
    assert b"error" not in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "run m hello"])
def test_a_full_disk_is_told_as_such(stand_in_program: list[str], words: str) -> None:
    command = f"{' '.join(stand_in_program)} {words} </dev/null >/dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stderr) == (1, b"error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_to_end_lets_everything_be_put_in_order(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    tidied = []

    def answer(_words: list[str]) -> int:
        try:
            signal.raise_signal(getattr(signal, name))
        finally:
            tidied.append(name)
        return 0

    monkeypatch.setattr("qwill.cli._dispatch", answer)
    assert main(["run"]) == code
    assert tidied == [name]
    assert signal.getsignal(getattr(signal, name)) == signal.SIG_DFL
