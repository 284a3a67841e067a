"""What generation gives back; names and shapes are vLLM's. Torch-free.

One prompt gives one `RequestOutput`, with `n` `CompletionOutput`s. A stream gives `StreamEvent`s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from qwill.errors import QwillError

__all__ = ["CompletionOutput", "FinishReason", "Logprob", "Metrics", "RequestOutput", "StreamEvent"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log probability (natural logarithm) of one token, after penalties and logit_bias, before temperature.

    `rank` counts from 1, the most probable token.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    """One answer. `text` is everything the model wrote; for a chat, it is also split into three parts."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    """One entry per new token: id -> Logprob, the chosen token always among them."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token's id or the stop string, where one ended the answer; None for the model's own end."""
    error: QwillError | None = None
    """What went wrong, where finish_reason is "error"; what was generated before it is kept."""
    reasoning: str | None = None
    """Chat only: what stood between <think> and </think>; None when the model did not think."""
    content: str | None = None
    """Chat only: the answer without thinking and tool calls."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """Chat only: [{"name": …, "arguments": {…}}, …]."""


@dataclass
class Metrics:
    """Times in seconds on a monotonic clock, counts in tokens."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    time_to_first_token: float = 0.0
    """From the call to the first new token; tokenization and the prompt's computation are in it."""
    decode_seconds: float = 0.0
    """From the first new token to the last."""
    cached_tokens: int = 0
    """Of the prompt's tokens, those that came from the prefix cache and were not computed again."""
    drafted_tokens: int = 0
    """Guessed tokens that were verified (speculative decoding), of all answers; known at the end."""
    accepted_tokens: int = 0
    """Those of them that were right."""

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were computed, not those from the cache, per second of time_to_first_token."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.time_to_first_token if self.time_to_first_token > 0 else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """New tokens after the first, per second of decode_seconds."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass
class RequestOutput:
    """Everything about one prompt. `prompt` is None when the prompt was given as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: Metrics = field(default_factory=Metrics)
    finished: bool = False


@dataclass(frozen=True)
class StreamEvent:
    """One piece of a streamed answer.

    `text` is new text only: joined, the events of one kind give the whole of it. The last event is of
    kind "done" and carries the whole `output`. `LLM.stream` gives only "content" and "done".
    """

    kind: Literal["thinking", "content", "tool_call", "done"]
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tool_call: dict[str, Any] | None = None
    output: RequestOutput | None = None
