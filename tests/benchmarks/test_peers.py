"""Engines in turns: which commands are run for which figures, and what is made of their words."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import peers

PRETENDER = """#!{python}
import json, sys
words = sys.argv[1:]
print(json.dumps(words), file=open({log!r}, "a"))
if "batched" in sys.argv[0]:
    print("some words")
    for size in map(int, words[words.index("-npl") + 1].split(",")):
        print(json.dumps({{"pl": size, "tg": 64, "t": 2.0}}))
else:
    prompts = [int(n) for n in words[words.index("-p") + 1].split(",") if int(n)]
    rows = [{{"n_prompt": n, "avg_ts": float(n)}} for n in prompts]
    if words[words.index("-n") + 1] != "0":
        rows.append({{"n_prompt": 0, "avg_ts": 70.0 if "0" in words[words.index("-d") + 1 :][:1] else 50.0}})
    print(json.dumps(rows))
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with two programs that pretend to be llama.cpp's."""
    for name in ("llama-bench", "llama-batched-bench"):
        program = tmp_path / name
        program.write_text(PRETENDER.format(python=sys.executable, log=str(tmp_path / "log")))
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (["decode"], {"decode": 70.0}),
        (["decode", "prefill"], {"prefill 512": 512.0, "prefill 2048": 2048.0, "decode": 70.0}),
        (["prefill", "deep"], {"prefill 512": 512.0, "prefill 2048": 2048.0, "deep": 50.0}),
        (["batch"], {"batch 8": 8 * 64 / 2, "batch 32": 32 * 64 / 2}),
    ],
)
def test_llama_cpp_is_asked_for_what_is_wanted(tools: Path, figures: list[str], expected: dict[str, float]) -> None:
    options = Namespace(llama_bench=str(tools / "llama-bench"), figures=figures, deep=4096)
    assert peers.measure_llama(options, "model.gguf") == expected
    calls = [json.loads(line) for line in (tools / "log").read_text().splitlines()]
    assert all(call[:4] == ["-m", "model.gguf", "-t", "2"] for call in calls)


def test_every_worker_gets_the_same_figures() -> None:
    options = Namespace(
        figures=["batch"], deep=0, model="folder", quant=["int8", "none"], folder=["mine=made"],
        openvino=["int8=/py=ov"], ort=[],
    )  # fmt: skip
    ours, others = peers.qwill(options), peers.workers(options)
    assert list(ours) == ["qwill int8", "qwill none", "qwill mine"]
    assert list(others) == ["openvino int8"]
    command = peers.worker(options, "/py", "openvino", "ov")
    assert command[0] == "/py"
    assert command[2:] == ["openvino", "ov", "--deep", "0", "--figures", "batch"]


def test_medians_are_of_the_rounds_that_have_the_figure() -> None:
    runs = [
        {"engine": "a", "figures": {"decode": 1.0, "batch 8": 5.0}},
        {"engine": "a", "figures": {"decode": 3.0}},
        {"engine": "b", "figures": {"decode": 7.0}},
    ]
    assert peers.medians(runs) == {"a": {"decode": 2.0, "batch 8": 5.0}, "b": {"decode": 7.0}}
