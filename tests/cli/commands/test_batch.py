"""`qwill batch` with a real small model: exit codes, streams, signals, and kills at random moments."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwill.cli import main
from qwill.cli.commands import batch as batch_module
from qwill.engine import Engine
from qwill.offline_batch import open_results

WAIT_SECONDS = 60


def request(custom_id: str, **body: Any) -> str:
    greedy = {"prompt": f"number {custom_id}", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {**greedy, **body}}
    return json.dumps(line) + "\n"


def requests(count: int, **body: Any) -> str:
    return "".join(request(f"r{number}", **body) for number in range(count))


def texts(path: Path) -> dict[Any, str]:
    """custom_id -> answer, or error."""
    results = [json.loads(line) for line in path.read_bytes().splitlines()]
    bodies = {result["custom_id"]: result["response"]["body"] for result in results}
    assert len(bodies) == len(results)
    return {name: body["choices"][0]["text"] if "choices" in body else body["error"] for name, body in bodies.items()}


@pytest.fixture
def words(tiny_model: Path, home: Path) -> list[str]:
    """The command line of a batch in the current folder."""
    return ["batch", str(tiny_model), "-i", "in.jsonl", "-o", "out.jsonl", "--threads", "1"]


def test_every_line_is_answered_and_the_summary_tells_it(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "in.jsonl").write_text(requests(3))
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 answered · 0 failed · 0 skipped · 24 tok · " in err
    assert "batch: 100 %" in err
    assert set(texts(home / "out.jsonl")) == {"r0", "r1", "r2"}


def test_failures_are_exit_code_1_and_tried_once_more(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "in.jsonl").write_text(requests(2) + request("bad", temperature=-1))
    assert main(words) == 1
    assert "2 answered · 1 failed · 0 skipped" in capsys.readouterr().err
    before = texts(home / "out.jsonl")
    (home / "in.jsonl").write_text(requests(2) + request("bad", temperature=1, seed=1))
    assert main(words) == 0
    assert "1 answered · 0 failed · 2 skipped" in capsys.readouterr().err
    after = texts(home / "out.jsonl")
    assert {name: after[name] for name in ("r0", "r1")} == {name: before[name] for name in ("r0", "r1")}
    assert isinstance(after["bad"], str)


def test_where_nothing_is_left_to_do_no_model_is_loaded(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "in.jsonl").write_text(requests(2))
    assert main([*words, "-q"]) == 0
    monkeypatch.setitem(sys.modules, "qwill.async_llm", None)  # so that importing it fails
    assert main(words) == 0
    assert capsys.readouterr().err == "0 answered · 0 failed · 2 skipped · 0 tok · 0.0 tok/s\n"
    assert main([*words, "--served-model-name", "other"]) == 2
    assert "answers of another model" in capsys.readouterr().err


def test_requests_come_from_standard_input_and_results_go_to_standard_output(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = requests(1) + request("r1", model="m") + request("r2", model="gpt")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data.encode())))
    change = {"in.jsonl": "-", "out.jsonl": "-"}
    assert main([*(change.get(word, word) for word in words), "-q", "--served-model-name", "m"]) == 1
    out, err = capsysbinary.readouterr()
    assert err == b""
    responses = {line["custom_id"]: line["response"] for line in map(json.loads, out.splitlines())}
    assert {name: response["status_code"] for name, response in responses.items()} == {"r0": 200, "r1": 200, "r2": 404}
    assert responses["r0"]["body"]["model"] == "m"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["-i", "nowhere.jsonl"], "cannot be read"),
        (["-i", "empty.jsonl"], "there are no requests"),
        (["-o", "in.jsonl"], "something else than results"),
        (["-o", "."], "cannot be written"),
        (["-o", "-q"], "--output-file needs a value"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--temperature", "1"], "temperature"),
    ],
)
def test_wrong_usage_is_told_before_the_model_is_loaded(
    words: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: list[str],
    told: str,
) -> None:
    monkeypatch.setitem(sys.modules, "qwill.async_llm", None)
    (home / "in.jsonl").write_text(requests(1))
    (home / "empty.jsonl").write_text("\n \n")
    kept = [word for flag, word in itertools.pairwise(words) if change[0] not in (flag, word)]
    assert main(["batch", *kept, *change]) == 2
    assert told in capsys.readouterr().err
    assert (home / "in.jsonl").read_text() == requests(1)


@pytest.mark.parametrize("flag", ["-i", "-o"])
def test_both_files_must_be_named(words: list[str], capsys: pytest.CaptureFixture[str], flag: str) -> None:
    position = words.index(flag)
    assert main(words[:position] + words[position + 2 :]) == 2
    assert "-file is missing" in capsys.readouterr().err


def test_a_model_that_is_not_here_leaves_no_results(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(requests(1).encode())))
    assert main(["batch", "./nowhere.gguf", "-i", "-", "-o", "out.jsonl", "-q"]) == 1
    assert (home / "out.jsonl").read_bytes() == b""


def test_as_many_requests_wait_as_are_computed_unless_the_queue_is_shorter() -> None:
    settings = batch_module.EngineSettings
    assert batch_module._in_flight(settings(max_num_seqs=8)) == 16
    assert batch_module._in_flight(settings(max_num_seqs=8, max_queue=3)) == 11


# Stopped from outside


def start(words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "qwill", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))


def wait_for_lines(path: Path, count: int) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until
        time.sleep(0.002)


MANY = 40
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}


def test_an_engine_that_fails_for_good_ends_the_run_and_leaves_the_lines(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "in.jsonl").write_text(requests(3))

    def fail(_: Engine) -> None:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(Engine, "step", fail)
        assert main(words) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: a defect" in err
    assert "0 answered · 0 failed · 0 skipped" in err
    assert "3 left: the same command goes on" in err
    assert main(words) == 0
    assert set(texts(home / "out.jsonl")) == {"r0", "r1", "r2"}


def test_results_that_another_process_writes_are_left_alone(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "in.jsonl").write_text(requests(1))
    with open_results(home / "out.jsonl", (), "model"):
        assert main(words) == 2
    assert "another process is writing these results" in capsys.readouterr().err


def test_a_run_that_is_stopped_at_any_moment_ends_with_the_same_results(words: list[str], home: Path) -> None:
    (home / "in.jsonl").write_text(requests(MANY, max_tokens=120) + request("bad", top_p=7))
    out, dice, before = home / "out.jsonl", random.Random(), set[bytes]()
    for number in dice.sample(list(CODES), 3):
        process = start([*words, "--max-num-seqs", "2"])
        wait_for_lines(out, len(before) + 1 + dice.randint(1, MANY // 5))
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == CODES[number]
        assert b"Traceback" not in err
        assert b"Task" not in err
        now = {line for line in out.read_bytes().splitlines(keepends=True) if answers(line)}
        assert before < now, "what was answered stays as it is"
        if number != signal.SIGKILL:
            assert f"{len(now) - len(before)} answered".encode() in err
            assert f"{len(before)} skipped".encode() in err
            assert b" left: the same command goes on" in err
        before = now
    assert len(before) < MANY
    assert main([*words, "-q"]) == 1
    assert main(["batch", words[1], "-i", "in.jsonl", "-o", "whole.jsonl", "-q"]) == 1
    assert texts(out) == texts(home / "whole.jsonl")
    assert len(texts(out)) == MANY + 1


def answers(line: bytes) -> bool:
    return line.endswith(b"\n") and b'"status_code": 200' in line
