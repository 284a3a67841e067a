"""Exports, held against the rules of the Trace Event Format, and against the records they come from."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qwill import LLM, SamplingParams
from qwill.tracing import OpRecord, StepRecord, Trace, trace
from qwill.tracing.export import json_pieces, perfetto_pieces, write_json, write_perfetto

NAME = 'a "name" 你好 \ud800 \x1b[0m'


@pytest.fixture(scope="module")
def seen(llm: LLM) -> Trace:
    """Two requests, one of them with a difficult name."""
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with trace(llm) as seen:
        llm.generate("To be, or not to be, that is the question", params, request_id=NAME)
        llm.generate("abc", params, request_id="other")
    return seen


@pytest.fixture
def events(seen: Trace, tmp_path: Path) -> list[dict[str, Any]]:
    write_perfetto(seen, tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert found["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(found["otherData"], dict)
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def lasting(events: list[dict[str, Any]], track: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == track]


def test_every_event_has_the_fields_of_its_kind(events: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
        if event["ph"] == "C":
            assert event["ts"] >= 0
            assert event["args"]
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] == "M":
            assert set(event["args"]) == {"name"} or set(event["args"]) == {"sort_index"}


def test_process_and_tracks_have_names(seen: Trace, events: list[dict[str, Any]]) -> None:
    named = {(e["name"], e["tid"]): e["args"] for e in events if e["ph"] == "M"}
    assert named["process_name", 0] == {"name": f"qwill {seen.model_name}"}
    tracks = {tid: args["name"] for (name, tid), args in named.items() if name == "thread_name"}
    assert list(tracks.values()) == ["steps", "modules", "ops"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == set(tracks)
    for event in events:
        if event["ph"] == "X":
            assert tracks[event["tid"]] == event["cat"]


def test_events_are_in_order_and_nest(events: list[dict[str, Any]]) -> None:
    timed = [event for event in events if event["ph"] != "M"]
    assert all(one["ts"] <= other["ts"] for one, other in pairwise(timed))
    for track in ("steps", "modules", "ops"):
        open_until: list[float] = []
        for event in lasting(events, track):
            end = round(1e3 * event["ts"]) + round(1e3 * event["dur"])
            while open_until and open_until[-1] <= round(1e3 * event["ts"]):
                open_until.pop()
            assert not open_until or end <= open_until[-1], f"{event} ends after what it lies in"
            open_until.append(end)
            assert len(open_until) <= {"steps": 1, "ops": 1, "modules": 3}[track]


def test_each_step_op_and_layer_is_there_at_its_time(seen: Trace, events: list[dict[str, Any]]) -> None:
    steps, ops = lasting(events, "steps"), lasting(events, "ops")
    assert [step["name"] for step in steps] == [f"step {i}" for i in range(10)]
    assert [op["name"] for op in ops] == [op.op for op in seen.ops]
    for event, op in zip(ops, seen.ops, strict=True):
        assert event["ts"] == pytest.approx(1e6 * op.start, abs=0.002)
        assert event["dur"] == pytest.approx(1e6 * op.seconds, abs=0.002)
        assert event["args"]["GB/s"] == pytest.approx(op.nbytes / op.seconds / 1e9, abs=0.001)
        plain = json.loads(json.dumps(asdict(op)))
        assert {name: plain[name] for name in event["args"] if name != "GB/s"}.items() >= {
            "inputs": plain["inputs"], "output": plain["output"], "dtype": op.dtype, "nbytes": op.nbytes,
            "module": op.module, "layer": op.layer, "backend": op.backend, "step": op.step,
        }.items()  # fmt: skip
    names = [module["name"] for module in lasting(events, "modules")]
    assert [name for name in names if name.startswith("layer ")] == ["layer 0", "layer 1", "layer 2"] * 10
    paths = [module["args"]["module"] for module in lasting(events, "modules")]
    layer = "model.layers.0"
    inside = [layer, f"{layer}.input_layernorm", f"{layer}.self_attn", f"{layer}.self_attn.qkv_proj"]
    assert paths[:6] == ["model.embed_tokens", "model.rotary", *inside]
    assert set(paths) >= {"model.layers.2.mlp", "model.norm", "lm_head"}
    one = names[: names.index("lm_head") + 1]
    assert one[:2] == ["embed_tokens", "rotary"]
    assert one[2:6] == ["layer 0", "input_layernorm", "self_attn", "qkv_proj"]
    assert one[-2:] == ["norm", "lm_head"]


def test_counters_follow_the_steps(seen: Trace, events: list[dict[str, Any]]) -> None:
    blocks = [e["args"] for e in events if e["name"] == "blocks of the KV cache"]
    assert blocks == [
        {"in use": step.num_blocks - step.free_blocks, "cached": step.cached_blocks} for step in seen.steps
    ]
    tokens = [e["args"]["tokens"] for e in events if e["name"] == "tokens in the step"]
    assert tokens == [n for step in seen.steps for n in (step.shares[0].count, 0)]


def test_the_json_holds_every_record(seen: Trace, tmp_path: Path) -> None:
    write_json(seen, tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text(encoding="ascii")
    found = json.loads(text)
    assert (found["format"], found["model"], found["block_size"], found["num_layers"]) == (1, seen.model_name, 16, 3)
    assert found["ops"] == json.loads(json.dumps([asdict(op) for op in seen.ops]))
    assert found["steps"] == json.loads(json.dumps([asdict(step) for step in seen.steps]))
    assert [request["request_id"] for request in found["requests"]] == [NAME, "other"]
    assert found["requests"][1]["token_ids"] == seen.request("other").token_ids
    assert len(found["requests"][1]["answer_token_ids"]) == 5
    assert text.count("\n") == 2 + 10 + len(seen.ops) + 2 * 3 + 1 + 1  # a record on each line


def test_an_empty_trace_is_valid_too(llm: LLM) -> None:
    with trace(llm) as empty:
        pass
    assert json.loads("".join(json_pieces(empty)))["ops"] == []
    assert {event["ph"] for event in json.loads("".join(perfetto_pieces(empty)))["traceEvents"]} == {"M"}


def test_a_long_trace_is_written_in_small_pieces(seen: Trace) -> None:
    op, step = seen.ops[-1], seen.steps[-1]
    longer = Trace.__new__(Trace)
    longer.__dict__ = dict(seen.__dict__)
    count = 2000
    longer.steps = [StepRecord(**{**_fields(step), "index": i, "start": float(i)}) for i in range(count)]
    longer.ops = [OpRecord(**{**_fields(op), "step": i, "start": float(i)}) for i in range(count) for _ in range(2)]
    for pieces in (perfetto_pieces(longer), json_pieces(longer)):
        sizes = [len(piece) for piece in pieces]
        assert sum(sizes) > 500_000
        assert max(sizes) < 4000


def _fields(record: OpRecord | StepRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
