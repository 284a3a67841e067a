"""The comparison as a whole: who does which work, what it ends with, and that nobody is left running."""

from __future__ import annotations

import importlib.util
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qwill.bench.compare import CompareSettings, compare, entrants
from qwill.bench.report import print_report, write_chart
from qwill.bench.results import as_record, write_record
from qwill.bench.trial import Entrant
from qwill.errors import BenchmarkError, SettingError
from qwill.settings import EngineSettings

Pretender = Callable[..., Entrant]
FLOAT32 = EngineSettings(dtype="float32", threads=1)


def four(pretender: Pretender, **wishes: Any) -> list[Entrant]:
    """The usual field, played; `wishes` by name with _ for -."""
    names = ("qwill-no-cache", "qwill", "transformers-no-cache", "transformers")
    return [
        pretender(name, uses_cache="no-cache" not in name, **wishes.get(name.replace("-", "_"), {})) for name in names
    ]


def test_those_without_a_cache_are_compared_with_everybody_on_less_work(tiny_model: Path, pretender: Pretender) -> None:
    measured = compare(str(tiny_model), CompareSettings(new_tokens=24), FLOAT32, among=four(pretender))
    assert [(group.new_tokens, [row.name for row in group.rows]) for group in measured.groups] == [
        (24, ["qwill", "transformers"]),
        (16, ["qwill-no-cache", "qwill", "transformers-no-cache", "transformers"]),
    ]


@pytest.mark.parametrize(
    ("settings", "works"),
    [
        (CompareSettings(quick=True), [(16, 4)]),
        (CompareSettings(new_tokens=16), [(16, 4)]),
        (CompareSettings(new_tokens=20, new_tokens_without_cache=0), [(20, 2)]),
        (CompareSettings(new_tokens=8, new_tokens_without_cache=30), [(30, 4), (8, 2)]),
    ],
)
def test_amounts_of_work(
    tiny_model: Path, pretender: Pretender, settings: CompareSettings, works: list[tuple[int, int]]
) -> None:
    measured = compare(str(tiny_model), settings, FLOAT32, among=four(pretender))
    assert [(group.new_tokens, len(group.rows)) for group in measured.groups] == works


def test_everybody_gets_the_same_prompts_and_one_run_to_warm_up(
    tiny_model: Path, pretender: Pretender, tmp_path: Path
) -> None:
    field = four(pretender, qwill={"log": str(tmp_path / "a")}, transformers={"log": str(tmp_path / "b")})
    compare(str(tiny_model), CompareSettings(prompt_tokens=9, new_tokens=20, repeats=4), FLOAT32, among=field)
    logs = [[json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in "ab"]
    work = [[request for op, request in log if op == "generate"] for log in logs]
    assert work[0] == work[1]
    assert [request["new_tokens"] for request in work[0]] == [16] * 5 + [20] * 5
    prompts = [tuple(request["prompt_token_ids"]) for request in work[0][:5]]
    assert {len(prompt) for prompt in prompts} == {9}
    assert len(set(prompts)) == 5, "a repeated prompt could be answered from a prefix cache"
    assert prompts == [tuple(request["prompt_token_ids"]) for request in work[0][5:]]


def test_ratios_are_those_of_the_decode_speeds(tiny_model: Path, pretender: Pretender) -> None:
    field = four(pretender, qwill={"speed": 250.0}, qwill_no_cache={"speed": 50.0})
    measured = compare(str(tiny_model), CompareSettings(quick=True), FLOAT32, among=field)
    ratios = [measured.groups[0].ratio(row) for row in measured.groups[0].rows]
    assert ratios == pytest.approx([0.5, 2.5, 1.0, 1.0])


def test_the_difference_of_a_near_tie_stands_in_table_notes_and_record(tiny_model: Path, pretender: Pretender) -> None:
    field = four(pretender, qwill={"parts_at": 5, "logits": [3.0, 3.03]})
    bf16 = EngineSettings(dtype="bfloat16", threads=1)
    measured = compare(str(tiny_model), CompareSettings(quick=True), bf16, among=field)
    table = io.StringIO()
    print_report(measured, table)
    assert "near tie at 6" in table.getvalue()
    assert "qwill, 16 new tokens: token ids part at new token 6 of repeat 1" in table.getvalue()
    rows = as_record(measured)["groups"][0]["rows"]
    assert [row["token_ids_equal"] for row in rows] == [True, False, True, True]
    assert rows[1]["difference_gap"] == pytest.approx(0.03)


def test_another_token_in_float32_ends_the_comparison(tiny_model: Path, pretender: Pretender) -> None:
    field = four(pretender, qwill_no_cache={"parts_at": 2, "logits": [3.0, 3.0]})
    with pytest.raises(BenchmarkError, match="qwill-no-cache does not choose the tokens that transformers chooses"):
        compare(str(tiny_model), CompareSettings(quick=True), FLOAT32, among=field)
    assert psutil.Process().children() == []


def test_a_failure_leaves_no_process_behind(tiny_model: Path, pretender: Pretender) -> None:
    field = four(pretender, transformers_no_cache={"dies_on": "generate"})
    with pytest.raises(BenchmarkError, match="this is why it died"):
        compare(str(tiny_model), CompareSettings(quick=True), FLOAT32, among=field)
    assert psutil.Process().children() == []


def test_ctrl_c_ends_the_children(tiny_model: Path, pretender: Pretender, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = pretender("transformers", hangs_on="generate", log=str(log)).command
    code = (
        "from qwill.bench.compare import *\n"
        f"compare({str(tiny_model)!r}, CompareSettings(quick=True), among=[Entrant('transformers', 't', {command!r})])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 30
        while not (log.exists() and "generate" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        children = psutil.Process(parent.pid).children()
        assert len(children) == 1
        parent.send_signal(signal.SIGINT)
        parent.wait(10)
    assert not psutil.pid_exists(children[0].pid)


def test_llama_cpp_needs_a_gguf_file(tiny_model: Path, pretender: Pretender) -> None:
    with pytest.raises(BenchmarkError, match="GGUF files only"):
        compare(str(tiny_model), CompareSettings(peer="llamacpp"), FLOAT32, among=four(pretender))


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is not None, reason="it is installed here")
def test_a_missing_peer_is_named_with_the_way_to_install_it(tiny_model: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"xllamacpp is not installed\nhint: pip install 'qwill\[llamacpp\]'"):
        compare(str(tiny_model), CompareSettings(peer="llamacpp"), FLOAT32)


@pytest.mark.parametrize(
    "bad",
    [
        {"repeats": 2}, {"repeats": True}, {"new_tokens": 1}, {"new_tokens_without_cache": 1}, {"prompt_tokens": 0},
        {"quick": True, "new_tokens_without_cache": 0}, {"peer": "vllm"}, {"quick": 1},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_comparison_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        CompareSettings(**bad)


def test_qwill_and_transformers_choose_the_same_tokens_in_their_own_processes(tiny_model: Path, tmp_path: Path) -> None:
    field = [entrant for entrant in entrants() if entrant.uses_cache]
    settings = CompareSettings(prompt_tokens=40, new_tokens=12, new_tokens_without_cache=0)
    measured = compare(str(tiny_model), settings, FLOAT32, among=field)
    rows = measured.groups[0].rows
    assert [row.difference for row in rows] == [None, None]
    assert rows[0].runs[0].token_ids == rows[1].runs[0].token_ids
    assert all(row.peak_rss > 50 * 2**20 and row.load_seconds > 0 for row in rows)
    assert measured.read_bandwidth > 1e8
    write_record(as_record(measured), tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["groups"][0]["rows"][0]["runs"][0]["token_ids"] == rows[0].runs[0].token_ids
    write_chart(measured, tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().lstrip().startswith("<?xml")
