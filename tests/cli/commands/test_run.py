"""`qwill run`: with a real small model in a process of its own, and with the stand-in where words matter."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from qwill.cli import main
from qwill.cli.commands import run as run_module
from qwill.cli.commands.run import answer_once, prompt_from, schema_from
from qwill.errors import PromptError, UsageError


def stdin_of(data: bytes) -> Any:
    return io.TextIOWrapper(io.BytesIO(data))


@pytest.mark.parametrize(
    ("words", "data", "prompt"),
    [
        (("explain", "this"), b"", "explain this"),
        (("explain",), b"a\nb\n", "explain\n\na\nb"),
        ((), "你好\n".encode(), "你好"),
        (("x",), b"  \n", "x"),
        (("x",), None, "x"),
    ],
)
def test_standard_input_joins_the_prompt(words: tuple[str, ...], data: bytes | None, prompt: str) -> None:
    assert prompt_from(words, None if data is None else stdin_of(data)) == prompt


@pytest.mark.parametrize("data", [b"", b" \n", b"\xff\xfe", b"x" * ((16 << 20) + 1)])
def test_nothing_or_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(PromptError):
        prompt_from((), stdin_of(data))


def test_an_input_that_nobody_closes_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "WAIT_SECONDS", 0.01)
    reading, writing = os.pipe()

    def close_later() -> None:
        time.sleep(0.2)
        os.close(writing)

    thread = threading.Thread(target=close_later)
    thread.start()
    with open(reading, encoding="utf-8") as stdin:
        assert prompt_from(("x",), stdin) == "x"
    thread.join()
    assert "waiting for standard input" in capsys.readouterr().err


def test_a_real_model_answers_on_stdout_and_all_else_is_on_stderr(
    qwill: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(tiny_model), "hello", "--temp", "0", "-n", "8", "--ignore-eos"]
    result = qwill(*words, "--stats")
    assert result.returncode == 0, result.stderr.decode()
    assert b"gen 8 tok" in result.stderr
    assert b"tok/s" not in result.stdout
    assert b"\x1b" not in result.stdout + result.stderr
    monkeypatch.setattr("sys.stdin", None)
    assert main([*words, "--json", "-q", "--logprobs", "1"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert err == ""
    assert record["text"].rstrip("\n") == result.stdout.decode().rstrip("\n")
    assert len(record["token_ids"]) == len(record["logprobs"]) == record["metrics"]["generated_tokens"] == 8
    assert record["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nonesuch-9b", "hi"], 1, "no model"),
        (["./nowhere.gguf", "hi"], 1, "does not exist"),
        (["TINY", "  "], 2, "the prompt is empty"),
        (["TINY", "x" * 3000], 2, "256"),
        (["TINY", "hi", "--device", "cuda:9"], 2, "cuda"),
        (["TINY", "hi", "--json-schema", "nowhere.json"], 2, "nowhere.json"),
    ],
)
def test_hostile_lines_fail_with_one_error_and_no_traceback(
    tiny_model: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["run", *[str(tiny_model) if word == "TINY" else word for word in words], "-q"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert told in err
    assert "Traceback" not in err


def test_a_mistyped_model_is_told_before_torch_is_imported(home: Path) -> None:
    code = "import sys; from qwill.cli import main; main(['run', 'qwne3-0.6b', 'hi']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert result.stdout == b"False\n"
    assert b"did you mean qwen3-0.6b" in result.stderr


def test_chat_form_and_settings_reach_the_engine(stand_in: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"system": "be kind", "think": False, "raw_special": True, "temperature": 0.0}
    assert answer_once(stand_in, "hi", given) == 0
    call = stand_in.calls[0]
    assert call["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert (call["enable_thinking"], call["raw_special"], call["params"].temperature) == (False, True, 0.0)
    assert capsys.readouterr().out == "2 messages, the last: hi \n"


def test_a_schema_comes_from_its_file(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"名": {"type": "string"}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema, ensure_ascii=False), encoding="utf-8")
    assert json.loads(str(schema_from(str(tmp_path / "schema.json")).json)) == schema
    for bad in (b"[1]", b"{", b"\xff\xfe", b" " * 70_000, b""):
        (tmp_path / "bad.json").write_bytes(bad)
        with pytest.raises(UsageError, match=r"json|JSON"):
            schema_from(str(tmp_path / "bad.json"))


def test_raw_and_models_without_a_template_continue_the_prompt(
    make_stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer_once(make_stand_in(), "Once", {"raw": True}) == 0
    assert capsys.readouterr() == ("Once and so on\n", "")
    assert answer_once(make_stand_in(chat_template=None), "Once", {}) == 0
    out, err = capsys.readouterr()
    assert out == "Once and so on\n"
    assert "no chat template" in err


def test_without_streaming_and_as_json_the_answer_is_the_same(
    stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer_once(stand_in, "think", {"stream": False}) == 0
    assert capsys.readouterr().out == "clear words\n"
    assert answer_once(stand_in, "think", {"json": True}) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["text"], record["reasoning"]) == ("clear words", "secret thoughts")


def test_an_error_in_the_middle_keeps_what_was_printed(qwill: Any) -> None:
    result = qwill("run", "m", "fail", engine="stand-in")
    assert result.returncode == 1
    assert result.stdout == b"half \n"
    assert result.stderr == b"error: the logits are not finite\n"


def start(program: list[str], *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*program, "run", "m", *words], stdin=subprocess.DEVNULL, env=dict(os.environ), **streams)


def test_ctrl_c_keeps_what_was_printed_and_is_130(stand_in_program: list[str]) -> None:
    with start(stand_in_program, "slow", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(12)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b""
    assert (first + out).startswith(b"word0 word1 ")
    assert (first + out).endswith(b" \n")


def test_ctrl_c_with_json_gives_the_part_as_json(stand_in: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_once(stand_in, "interrupt", {"json": True}) == 130
    record = json.loads(capsys.readouterr().out)
    assert (record["text"], record["finish_reason"], record["token_ids"]) == ("half ", "abort", [0])
    assert stand_in.closed_streams == 1


def test_a_full_disk_is_one_line(stand_in_program: list[str]) -> None:
    with open("/dev/full", "wb") as full, start(stand_in_program, "hi", stdout=full, stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.count(b"error:") == 1
    assert b"No space left" in err
    assert b"Traceback" not in err
