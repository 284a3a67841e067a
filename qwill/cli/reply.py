"""One streamed answer: followed as it comes, kept, and told as statistics or JSON. Ctrl-C ends it and keeps what came.

Knows events and views, not models and terminals.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from qwill.outputs import FinishReason, Metrics, RequestOutput, StreamEvent

__all__ = ["Reply", "View", "as_record", "play", "stats_line"]


class View(Protocol):
    """Where an answer is shown."""

    def thinking(self, text: str, tokens: int) -> None:
        """The next piece of the model's thinking, made of this many tokens."""

    def content(self, text: str) -> None:
        """The next piece of the answer."""

    def close(self) -> None:
        """The answer is over, or was stopped; what was shown stays. May be called twice."""


@dataclass
class Reply:
    """What has come of an answer so far. Times in seconds on a monotonic clock."""

    thinking: str = ""
    content: str = ""
    token_ids: list[int] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    output: RequestOutput | None = None
    """Complete, with the engine's own metrics; None when the answer was stopped."""
    interrupted: bool = False
    began: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    last_token: float | None = None

    def add(self, event: StreamEvent) -> None:
        """Keep one event."""
        if event.token_ids:
            self.token_ids += event.token_ids
            self.last_token = time.monotonic()
            self.first_token = self.first_token or self.last_token
        if event.kind == "thinking":
            self.thinking += event.text
        elif event.kind == "content":
            self.content += event.text
        elif event.kind == "tool_call" and event.tool_call is not None:
            self.tool_calls.append(event.tool_call)
        elif event.kind == "done":
            self.output = event.output

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended."""
        if self.output is not None:
            return self.output.outputs[0].finish_reason
        return "abort" if self.interrupted else None

    @property
    def metrics(self) -> Metrics:
        """The engine's metrics, or our own clock's where the answer was stopped."""
        if self.output is not None:
            return self.output.metrics
        first, last = self.first_token or self.began, self.last_token or self.began
        return Metrics(0, len(self.token_ids), first - self.began, last - first)


def play(events: Iterator[StreamEvent], view: View, *, stream: bool = True) -> Reply:
    """Follow `events` to their end or to Ctrl-C, and show them: as they come, or (`stream=False`) at the end.

    The iterator is closed in any case, which stops the generation. Errors of the engine go through.
    """
    reply = Reply()
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(getattr(events, "close", lambda: None))
            for event in events:
                reply.add(event)
                if stream:
                    _show(event, view)
    except KeyboardInterrupt:
        reply.interrupted = True
    finally:
        if not stream:
            view.content(reply.content + "".join(f"\n{_call_text(call)}\n" for call in reply.tool_calls))
        view.close()
    return reply


def _show(event: StreamEvent, view: View) -> None:
    if event.kind == "thinking":
        view.thinking(event.text, len(event.token_ids))
    elif event.kind == "content" and event.text:
        view.content(event.text)
    elif event.kind == "tool_call" and event.tool_call is not None:
        view.content(f"\n{_call_text(event.tool_call)}\n")


def _call_text(call: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def stats_line(reply: Reply) -> str:
    """`prompt 812 tok (700 cached) 240 tok/s · gen 214 tok 31.5 tok/s (guessed 80 of 95) · TTFT 0.42 s · stop`."""
    metrics = reply.metrics
    parts = [f"gen {metrics.generated_tokens} tok {metrics.decode_tokens_per_second:.1f} tok/s"]
    if metrics.drafted_tokens:
        parts[0] += f" (guessed {metrics.accepted_tokens} of {metrics.drafted_tokens})"
    if metrics.prompt_tokens:
        cached = f"({metrics.cached_tokens} cached) " if metrics.cached_tokens else ""
        parts.insert(0, f"prompt {metrics.prompt_tokens} tok {cached}{metrics.prefill_tokens_per_second:.0f} tok/s")
    parts.append(f"TTFT {metrics.time_to_first_token:.2f} s")
    parts.append("interrupted" if reply.interrupted else reply.finish_reason or "no end")
    return " · ".join(parts)


def as_record(reply: Reply) -> dict[str, Any]:
    """The answer as one JSON-ready object; times in seconds, speeds in tokens per second."""
    metrics = reply.metrics
    record: dict[str, Any] = {
        "text": reply.content,
        "reasoning": reply.thinking or None,
        "tool_calls": reply.tool_calls,
        "token_ids": reply.token_ids,
        "finish_reason": reply.finish_reason,
        "metrics": {
            "prompt_tokens": metrics.prompt_tokens,
            "cached_tokens": metrics.cached_tokens,
            "generated_tokens": metrics.generated_tokens,
            "drafted_tokens": metrics.drafted_tokens,
            "accepted_tokens": metrics.accepted_tokens,
            "time_to_first_token": metrics.time_to_first_token,
            "decode_seconds": metrics.decode_seconds,
            "prefill_tokens_per_second": metrics.prefill_tokens_per_second,
            "decode_tokens_per_second": metrics.decode_tokens_per_second,
        },
    }
    if reply.output is not None:
        completion = reply.output.outputs[0]
        record["token_ids"] = completion.token_ids
        if completion.logprobs is not None:
            record["logprobs"] = [
                [{"token_id": token_id, **vars(logprob)} for token_id, logprob in position.items()]
                for position in completion.logprobs
            ]
    return record
