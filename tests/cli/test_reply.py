"""A streamed answer is followed, kept and told; Ctrl-C and errors close the stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from qwill.cli.reply import Reply, as_record, play, stats_line
from qwill.errors import ModelError
from qwill.outputs import CompletionOutput, Logprob, Metrics, RequestOutput, StreamEvent
from qwill.sampling_params import SamplingParams


class Recorder:
    """A view that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def thinking(self, text: str, tokens: int) -> None:
        self.calls.append((f"thinking {tokens}", text))

    def content(self, text: str) -> None:
        self.calls.append(("content", text))

    def close(self) -> None:
        self.calls.append(("close", ""))


def ask(stand_in: Any, text: str) -> Iterator[StreamEvent]:
    events: Iterator[StreamEvent] = stand_in.stream_chat([{"role": "user", "content": text}], SamplingParams())
    return events


def test_events_are_shown_as_they_come_and_kept(stand_in: Any) -> None:
    view = Recorder()
    reply = play(ask(stand_in, "think"), view)
    assert view.calls == [
        *(("thinking 1", "secret "), ("thinking 1", "thoughts")),
        *(("content", "clear words"), ("close", "")),
    ]
    assert (reply.thinking, reply.content, reply.token_ids) == ("secret thoughts", "clear words", [0, 1, 2])
    assert reply.finish_reason == "stop"


def test_without_streaming_the_answer_is_shown_at_the_end(stand_in: Any) -> None:
    view = Recorder()
    play(ask(stand_in, "think"), view, stream=False)
    assert view.calls == [("content", "clear words"), ("close", "")]


def interrupted(events: Iterator[StreamEvent], after: int) -> Iterator[StreamEvent]:
    for count, event in enumerate(events):
        if count == after:
            raise KeyboardInterrupt
        yield event


def test_ctrl_c_keeps_what_came_and_stops_the_engine(stand_in: Any) -> None:
    view = Recorder()
    reply = play(interrupted(ask(stand_in, "some words here"), 2), view)
    assert reply.interrupted
    assert reply.content == "1 messages, "
    assert reply.finish_reason == "abort"
    assert view.calls[-1] == ("close", "")
    assert "interrupted" in stats_line(reply)
    assert stand_in.closed_streams == 1


def test_an_error_of_the_engine_goes_through_after_the_view_is_closed(stand_in: Any) -> None:
    view = Recorder()
    with pytest.raises(ModelError):
        play(ask(stand_in, "fail"), view)
    assert view.calls == [("content", "half "), ("close", "")]


def test_tool_calls_are_kept_and_shown_as_text() -> None:
    call = {"name": "weather", "arguments": {"city": "北京"}}
    view = Recorder()
    reply = play(iter([StreamEvent("tool_call", tool_call=call)]), view)
    assert reply.tool_calls == [call]
    assert json.loads(view.calls[0][1].strip().removeprefix("<tool_call>").removesuffix("</tool_call>")) == call


def finished(**about: Any) -> Reply:
    output = CompletionOutput(0, "hi", [5, 6], finish_reason="length", **about)
    metrics = Metrics(prompt_tokens=812, generated_tokens=214, time_to_first_token=0.42, decode_seconds=6.762)
    return Reply(content="hi", token_ids=[5], output=RequestOutput("0", "p", [1], [output], metrics))


def test_statistics_are_one_line() -> None:
    assert stats_line(finished()) == "prompt 812 tok 1933 tok/s · gen 214 tok 31.5 tok/s · TTFT 0.42 s · length"


def test_statistics_tell_of_cached_and_of_guessed_tokens() -> None:
    reply = finished()
    metrics = reply.metrics
    metrics.cached_tokens, metrics.drafted_tokens, metrics.accepted_tokens = 700, 95, 80
    assert stats_line(reply).startswith(
        "prompt 812 tok (700 cached) 267 tok/s · gen 214 tok 31.5 tok/s (guessed 80 of 95)"
    )


def test_the_record_is_json_and_has_the_engine_s_token_ids() -> None:
    record = json.loads(json.dumps(as_record(finished(logprobs=[{5: Logprob(-0.5, 1, "h")}]))))
    assert record["text"] == "hi"
    assert record["reasoning"] is None
    assert record["token_ids"] == [5, 6]
    assert record["finish_reason"] == "length"
    assert (record["metrics"]["prompt_tokens"], record["metrics"]["cached_tokens"]) == (812, 0)
    assert record["logprobs"] == [[{"token_id": 5, "logprob": -0.5, "rank": 1, "decoded_token": "h"}]]
