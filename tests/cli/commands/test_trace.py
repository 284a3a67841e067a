"""`qwill trace`: the table, the list, JSON, and the files, of a small random model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from qwill import LLM
from qwill.bench import machine
from qwill.cli import main
from qwill.cli.commands.trace import untraced_step
from qwill.tracing import trace

QUICK = ["--temp", "0", "--ignore-eos", "--threads", "1", "--dtype", "float32"]


@pytest.fixture
def traced(
    home: Path, tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run `qwill trace` on the model; gives what it printed on stdout and stderr."""
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "BANDWIDTH_SECONDS", 0.01)
    monkeypatch.setattr("sys.stdin", None)

    def run(*words: str, code: int = 0) -> tuple[str, str]:
        assert main(["trace", str(tiny_chat_model), *words, *QUICK]) == code
        out, err = capsys.readouterr()
        return out, err

    return run


def test_a_table_for_each_phase_with_the_answer_and_the_limit(traced: Any) -> None:
    out, err = traced("To be")
    assert "prefill: 1 step, 24 tokens" in out  # the template's, too
    assert "decode: 15 steps, 15 tokens" in out
    assert "prompt 24 tokens, answer 16 tokens: “" in out
    assert "memory is read at" in out
    assert "Measured here: a decoding step took" in out
    for name in ("mlp.down_proj linear", "self_attn attention", "lm_head linear", "outside ops"):
        assert out.count(name) == 2
    assert "\x1b" not in out + err
    assert "answering once with a trace" in err


def test_the_list_has_every_op_or_those_of_a_step_and_layer(traced: Any) -> None:
    record = json.loads(traced("To be", "-n", "3", "--json", "-q")[0])
    every = traced("To be", "-n", "3", "--ops", "-q")[0].splitlines()[1:]
    assert [line.split()[3] for line in every] == [op["op"] for op in record["ops"]]
    some = traced("To be", "-n", "3", "--step", "1", "--layer", "2", "-q")[0].splitlines()[1:]
    wanted = [op for op in record["ops"] if (op["step"], op["layer"]) == (1, 2)]
    assert [line.split()[:4] for line in some] == [["1", "decode", "2", op["op"]] for op in wanted]
    assert len(wanted) > 8


def test_json_is_everything_and_nothing_else(traced: Any) -> None:
    out, err = traced("你好", "--raw", "-n", "4", "--json", "-q")
    record = json.loads(out)
    assert err == ""
    assert record["format"] == 1
    assert len(record["steps"]) == 4
    assert len(record["requests"]) == 1
    assert len(record["requests"][0]["token_ids"]) == 6 + 3
    assert record["requests"][0]["num_prompt_tokens"] == 6
    assert record["requests"][0]["cached_tokens"] == 0


def test_files_are_written_as_asked_for(traced: Any, home: Path, tiny_chat_model: Path) -> None:
    words = ["-o", "new/plain.json", "--perfetto", "view.json", "--keep", "residuals, mlp", "--save-tensors", "k.st"]
    out, err = traced("To be", "--raw", "-n", "4", *words)
    assert "decode: 3 steps" in out
    assert [line for line in err.splitlines() if line.startswith("wrote ")] == [
        "wrote new/plain.json", "wrote view.json", "wrote k.st",
    ]  # fmt: skip
    plain = json.loads((home / "new/plain.json").read_text())
    view = json.loads((home / "view.json").read_text())
    assert len([e for e in view["traceEvents"] if e.get("cat") == "ops"]) == len(plain["ops"])
    with LLM(tiny_chat_model, dtype="float32", threads=1) as llm, trace(llm, residuals=True, mlp=True) as seen:
        llm.generate("To be", llm.params(temperature=0.0, max_tokens=4, ignore_eos=True))
    one = seen.request()
    assert plain["requests"][0]["token_ids"] == one.token_ids
    with safe_open(home / "k.st", framework="pt") as file:
        assert set(file.keys()) == {"token_ids", "residuals", "mlp.0", "mlp.1", "mlp.2"}
        assert torch.equal(file.get_tensor("residuals"), one.residuals)
        assert torch.equal(file.get_tensor("mlp.2"), one.mlp(2))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--keep", "residuals"], "--save-tensors is missing"),
        (["--save-tensors", "k.st"], "--keep is missing"),
        (["--keep", "residuals,logits", "--save-tensors", "k.st"], "'logits'"),
        (["--json", "--layer", "1"], "--json gives everything"),
        (["--json", "--ops"], "--json gives everything"),
        (["-o", "there.txt"], "exists already"),
        (["--perfetto", "there.txt/x.json"], "cannot write"),
        (["-o", "same.json", "--perfetto", "./same.json"], "one file"),
        (["-o", "same.json", "--perfetto", "new/../same.json"], "one file"),
        (["--raw", "--system", "x"], "--raw has no chat template"),
        (["--layer", "-1"], "0 … 9999"),
        ([""], "the prompt is empty"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_model_is_loaded(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    (home / "there.txt").write_text("mine")
    prompt = [] if words == [""] else ["hi"]
    assert main(["trace", "nonesuch-9b", *prompt, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert told in err
    assert [path.name for path in home.iterdir()] == ["there.txt"]
    assert (home / "there.txt").read_text() == "mine"


def test_a_layer_or_step_that_is_not_there_is_told_with_those_that_are(traced: Any) -> None:
    assert "allowed: 0 … 2" in traced("hi", "--layer", "3", code=2)[1]
    assert "allowed: 0 … 3" in traced("hi", "-n", "4", "--step", "4", code=2)[1]


def test_the_untraced_time_is_of_decoding_steps_alone(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, dtype="float32", threads=1) as llm:
        given: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "raw": True}
        before = llm.stats
        found = untraced_step(llm, "a long prompt " * 20, {**given, "max_tokens": 8})
        done = llm.stats.since(before)
        assert done.steps == 8
        assert found is not None
        assert 0 < found < done.model_seconds / 6
        assert untraced_step(llm, "hi", {**given, "max_tokens": 2}) is None
        assert llm.stats.since(before).prefix_hit_tokens == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_it_quietly_and_leaves_no_file(home: Path, tiny_chat_model: Path) -> None:
    words = ["trace", str(tiny_chat_model), "hi", "-n", "2000", *QUICK, "-o", "trace.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qwill", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    told = next(line for line in process.stderr if "with a trace" in line)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), told + err
    assert "Traceback" not in err
    assert not (home / "trace.json").exists()
