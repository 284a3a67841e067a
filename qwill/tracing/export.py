"""A trace as a file: for the viewers of Chrome and Perfetto, or as plain JSON. Knows records and no engine.

Files are written piece by piece, one step's events or one record at a time, so that a long trace needs no second copy
in memory; and under another name until they are whole, so that nobody ever finds half a file.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qwill.tracing.records import OpRecord, StepRecord
from qwill.tracing.trace import Trace
from qwill.whole_file import whole_file

__all__ = ["FORMAT", "json_pieces", "perfetto_pieces", "write_json", "write_perfetto"]

FORMAT = 1
"""Version of the JSON layout; it goes up when a field changes its meaning or goes away."""

TRACKS = {1: "steps", 2: "modules", 3: "ops"}
"""Thread number -> name, in the order in which a viewer shows them."""
STEPS, MODULES, OPS = TRACKS
PROCESS = 1


def write_json(trace: Trace, path: str | Path) -> None:
    """Write what a trace noted as one JSON object, a record on each line:

    "format"       1
    "model", "block_size", "num_layers"
    "requests"     request_id, num_prompt_tokens, cached_tokens, first, token_ids, answer_token_ids: `RequestTrace`
    "steps"        the fields of `StepRecord`, with "shares" as those of `ShareRecord`; seconds since the trace began
    "ops"          the fields of `OpRecord`

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json_pieces(trace))


def write_perfetto(trace: Trace, path: str | Path) -> None:
    """Write a trace in Chrome's Trace Event Format, which the viewers of Chrome and Perfetto open.

    Three tracks of what lasts a while: steps; modules, each within the one that it is a part of; ops. And counters:
    blocks of the KV cache in use and cached, and tokens computed in a step. The order is that of time.

    A module lasts from its first op to the end of its last one. Times are in microseconds since the trace began.

    Raises:
        OSError: see `write_json`.
    """
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(perfetto_pieces(trace))


def json_pieces(trace: Trace) -> Iterator[str]:
    """The text that `write_json` writes, in pieces."""
    head = {
        "format": FORMAT,
        "model": trace.model_name,
        "block_size": trace.block_size,
        "num_layers": trace.config.num_layers,
    }
    yield _dumped(head)[:-1]
    yield from _listed("requests", (_request(trace, name) for name in trace.requests))
    yield from _listed("steps", map(asdict, trace.steps))
    yield from _listed("ops", map(asdict, trace.ops))
    yield "\n}\n"


def _request(trace: Trace, name: str) -> dict[str, Any]:
    seen = trace.requests[name]
    return {
        "request_id": name,
        "num_prompt_tokens": seen.num_prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "first": seen.first,
        "token_ids": seen.token_ids,
        "answer_token_ids": seen.answer_token_ids,
    }


def _listed(name: str, records: Iterable[dict[str, Any]]) -> Iterator[str]:
    ""","name":[…] with a record on each line."""
    yield f',\n"{name}":['
    for number, record in enumerate(records):
        yield ("," if number else "") + "\n" + _dumped(record)
    yield "\n]"


def perfetto_pieces(trace: Trace) -> Iterator[str]:
    """The text that `write_perfetto` writes, in pieces."""
    yield '{"displayTimeUnit":"ms","otherData":' + _dumped({"model": trace.model_name}) + ',"traceEvents":[\n'
    yield ",\n".join(map(_dumped, _names(trace)))
    for step in trace.steps:
        first, stop = (bisect.bisect_left(trace.ops, step.index + i, key=lambda op: op.step) for i in (0, 1))
        events = [*_step_events(step), *_module_events(trace.ops[first:stop]), *map(_op_event, trace.ops[first:stop])]
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        yield "".join(",\n" + _dumped(event) for event in events)
    yield "\n]}\n"


def _names(trace: Trace) -> Iterator[dict[str, Any]]:
    """What the viewer calls process and tracks."""
    named = {"ph": "M", "pid": PROCESS}
    yield {**named, "name": "process_name", "tid": 0, "args": {"name": f"qwill {trace.model_name}"}}
    for track, name in TRACKS.items():
        yield {**named, "name": "thread_name", "tid": track, "args": {"name": name}}
        yield {**named, "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}}


def _step_events(step: StepRecord) -> Iterator[dict[str, Any]]:
    tokens = sum(share.count + share.num_drafts for share in step.shares)
    start, end = step.start, step.start + step.seconds
    shares = [asdict(share) for share in step.shares]
    yield _lasting(f"step {step.index}", STEPS, (start, end), {"tokens": tokens, "shares": shares})
    used = step.num_blocks - step.free_blocks
    yield _counter("blocks of the KV cache", start, {"in use": used, "cached": step.cached_blocks})
    yield _counter("tokens in the step", start, {"tokens": tokens})
    yield _counter("tokens in the step", end, {"tokens": 0})


def _module_events(ops: Sequence[OpRecord], depth: int = 0) -> Iterator[dict[str, Any]]:
    """The modules that a step's ops lie in, outer ones first: a layer, its attention, the projection in that."""

    def path(op: OpRecord) -> str:
        outer = re.sub(r"^(model\.(layers\.)?)?.*", r"\1", op.module)
        parts = op.module.removeprefix(outer).split(".")
        return outer + ".".join(parts[: depth + 1]) if len(parts) > depth else ""

    for module, group in itertools.groupby(ops, key=path):
        inside = list(group)
        if not module:
            continue
        own = module.rpartition(".")[2]
        name = f"layer {own}" if depth == 0 and inside[0].layer is not None else own
        times = inside[0].start, inside[-1].start + inside[-1].seconds
        yield _lasting(name, MODULES, times, {"module": module})
        yield from _module_events(inside, depth + 1)


def _op_event(op: OpRecord) -> dict[str, Any]:
    about = asdict(op)
    for field in ("op", "start", "seconds"):
        del about[field]
    rate = op.nbytes / op.seconds / 1e9 if op.seconds else 0.0
    return _lasting(op.op, OPS, (op.start, op.start + op.seconds), {**about, "GB/s": round(rate, 3)})


def _lasting(name: str, track: int, times: tuple[float, float], args: dict[str, Any]) -> dict[str, Any]:
    """A complete event. Whole nanoseconds, so that what lies within another event still does after rounding."""
    start, end = (round(time * 1e9) for time in times)
    ends = {"ts": start / 1e3, "dur": (end - start) / 1e3}
    return {"name": name, "cat": TRACKS[track], "ph": "X", **ends, "pid": PROCESS, "tid": track, "args": args}


def _counter(name: str, time: float, values: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "ts": round(time * 1e9) / 1e3, "pid": PROCESS, "tid": 0, "args": values}


def _dumped(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
