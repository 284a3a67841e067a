"""`qwill trace`: one answer, with every op of every step timed; wired to qwill.tracing, which does the watching."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from qwill.cli.commands.run import check_template_flags, events_of, prompt_from
from qwill.cli.flags import AnswerFlags, Model, Part, RunFlags, TraceFlags, check_given, flags_of
from qwill.cli.load import load_model
from qwill.cli.paths import check_may_write
from qwill.cli.terminal import harmless, notice
from qwill.errors import QwillError, UsageError
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.llm import LLM
    from qwill.tracing import Trace

__all__ = ["register"]

MAX_TOKENS = 16
"""Of the answer, unless more are asked for: the next ones would look the same."""

FILES = ("output", "perfetto", "save_tensors")

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(
        TraceFlags,
        Part(AnswerFlags, ("system", "think", "raw_special")),
        Part(RunFlags, ("raw",)),
        SamplingParams,
        EngineSettings,
    )


def register(app: App) -> None:
    """Make `qwill trace` of this app."""
    app.default(trace)


def trace(
    model: Model,
    *prompt: Annotated[str, Parameter(help="the prompt; standard input, if any, follows it after a blank line")],
    given: Flags | None = None,
) -> int:
    """Answer a prompt and time every op: which ones take how long, move how much, and how near they come to what memory
    can do. The answer is short: --max-tokens is 16 here. It is computed twice, first untraced, to warm up and compare.
    """
    given = {"max_tokens": MAX_TOKENS, **(given or {})}
    check_given(given, AnswerFlags, SamplingParams, EngineSettings, TraceFlags)
    check_template_flags(given)
    kinds = _checked(given)
    text = prompt_from(prompt, sys.stdin)
    with load_model(model, given) as llm:
        _check_layer(llm, given)
        _say("answering once without a trace", given)
        untraced = untraced_step(llm, text, given)
        _say("answering once with a trace", given)
        seen, answer = _traced(llm, text, {**given, "quiet": True}, kinds)
        _print(llm, seen, answer, untraced, given)
        _save(seen, kinds, given)
    return 0


def _checked(given: dict[str, Any]) -> list[str]:
    """What to keep, when all flags fit together and all files can be written.

    Raises:
        UsageError: they do not; names the flag or the file.
    """
    kinds = [kind.strip() for kind in (given.get("keep") or "").split(",") if kind.strip()]
    if kinds:
        from qwill.tracing.tensors import check_kinds

        check_kinds(kinds)
    if bool(kinds) != bool(given.get("save_tensors")):
        missing, hint = ("--save-tensors", "FILE.safetensors") if kinds else ("--keep", "residuals,attention,mlp")
        raise UsageError(f"{missing} is missing: it goes with the other one", hint=f"{missing} {hint}")
    if given.get("json") and _lists(given):
        raise UsageError("--json gives everything, so it goes with none of --ops, --step and --layer")
    check_may_write(*(given.get(name) for name in FILES))
    files = [Path(os.path.realpath(given[name])) for name in FILES if given.get(name)]
    for file in files:
        if file.exists():
            raise UsageError("this file exists already", where=str(file), hint="name another one, or delete it first")
        if files.count(file) > 1:
            raise UsageError("two things cannot be written to one file", where=str(file))
    return kinds


def _lists(given: dict[str, Any]) -> bool:
    return bool(given.get("list_ops")) or given.get("step") is not None or given.get("layer") is not None


def _check_layer(llm: LLM, given: dict[str, Any]) -> None:
    layer, last = given.get("layer"), llm.config.num_layers - 1
    if layer is not None and layer > last:
        raise UsageError(f"layer {layer}: there is no such layer", hint=f"allowed: 0 … {last}")


def untraced_step(llm: LLM, text: str, given: dict[str, Any]) -> float | None:
    """Seconds of the forward pass of a decoding step while nobody traces; None where too few tokens come.

    The first decoding step is left out: it may be the one that is recorded for the others.
    """
    before, tokens = None, 0
    for event in events_of(llm, text, given, cache_salt=secrets.token_hex(8)):
        tokens += len(event.token_ids)
        if tokens >= 2 and before is None:
            before = llm.stats
    if before is None:
        return None
    done = llm.stats.since(before)
    return done.model_seconds / done.steps if done.steps else None


def _traced(llm: LLM, text: str, given: dict[str, Any], kinds: list[str]) -> tuple[Trace, str]:
    """The trace and the answer. Nothing of it comes from the prefix cache, so that everything is seen."""
    from qwill.tracing import trace as watch

    with watch(llm, **dict.fromkeys(kinds, True)) as seen:
        events = events_of(llm, text, given, cache_salt=secrets.token_hex(8), request_id="traced")
        answer = "".join(event.text for event in events if event.kind in ("thinking", "content"))
    return seen, answer


def _print(llm: LLM, seen: Trace, answer: str, untraced: float | None, given: dict[str, Any]) -> None:
    from qwill.cli.op_table import print_ops, print_times
    from qwill.tracing.export import json_pieces
    from qwill.views.amounts import amount
    from qwill.views.roofline import roofline

    if given.get("json"):
        sys.stdout.writelines(json_pieces(seen))
        return
    step, layer = given.get("step"), given.get("layer")
    if step is not None and step >= len(seen.steps):
        raise UsageError(f"step {step}: there is no such step", hint=f"allowed: 0 … {len(seen.steps) - 1}")
    if _lists(given):
        wanted = (op for op in seen.ops if step in (None, op.step) and layer in (None, op.layer))
        print_ops(wanted, seen.steps, sys.stdout)
        return
    _say("measuring how fast memory is", given)
    from qwill.bench.machine import read_bandwidth

    bandwidth = read_bandwidth(llm.threads)
    request = seen.request()
    print(harmless(f"{seen.model_name}: {amount(llm.decode_bytes, 'B')} of weights for each token, {llm.dtype}"))
    threads = f"{llm.threads} thread{'s' if llm.threads > 1 else ''}"
    print(f"{threads}; memory is read at {amount(bandwidth, 'B/s')}, measured now")
    print(
        f"prompt {request.num_prompt_tokens} tokens, answer {len(request.answer_token_ids)} tokens: {_quoted(answer)}"
    )
    print_times(roofline(seen, read_bandwidth=bandwidth, untraced_step_seconds=untraced), sys.stdout)


def _quoted(answer: str) -> str:
    """On one line, with nothing that a terminal would obey."""
    return "“" + harmless(answer).replace("\n", "␊").replace("\t", "␉") + "”"


def _save(seen: Trace, kinds: list[str], given: dict[str, Any]) -> None:
    from qwill.tracing.export import write_json, write_perfetto
    from qwill.tracing.tensors import write_tensors

    for name, write in (
        ("output", write_json),
        ("perfetto", write_perfetto),
        ("save_tensors", lambda seen, path: write_tensors(seen, path, kinds)),
    ):
        if given.get(name):
            with _told(given[name]):
                write(seen, given[name])
            _say(f"wrote {given[name]}", given)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """A file that cannot be written is an error of the user's machine, not of ours."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise QwillError(f"cannot write the file: {why}", where=path, hint="is the disk full?") from error


def _say(what: str, given: dict[str, Any]) -> None:
    if not given.get("quiet"):
        notice(what)
