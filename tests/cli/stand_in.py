"""A stand-in for the engine: its answers are scripted, so that each thing to be shown can be.

Run as a program, this file is `qwill` with that stand-in: `python stand_in.py chat any-name`. So a test can start it
on a pseudo-terminal, press keys and look at the screen, in a fraction of a second and without torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from qwill.errors import ModelError
from qwill.outputs import CompletionOutput, Metrics, RequestOutput, StreamEvent
from qwill.sampling_params import SamplingParams
from qwill.settings import with_overrides

MARKDOWN = "# Title\n\nSome **bold** words.\n\n```python\nprint('你好')\n```\n\n- one\n- two\n"
HOSTILE = "red \x1b[31mtext\x1b[0m\x07 \x9b2J \x1b]0;title\x07 end"


class StandIn:
    """What the command line needs of `qwill.LLM`; the last message says what is answered."""

    name, dtype, device, threads, load_seconds = "stand-in", "float32", "cpu", 1, 0.0
    finish_reason: Any = "stop"

    def __init__(self, max_model_len: int = 1000, chat_template: str | None = "x") -> None:
        self.max_model_len = max_model_len
        self.tokenizer = SimpleNamespace(chat_template=chat_template)
        self.default_params = SamplingParams(temperature=0.5)
        self.calls: list[dict[str, Any]] = []
        self.closed_streams = 0

    def params(self, **overrides: Any) -> SamplingParams:
        return with_overrides(self.default_params, overrides)

    def stream(self, prompt: str, params: SamplingParams, **how: Any) -> Iterator[StreamEvent]:
        self.calls.append({"prompt": prompt, "params": params, **how})
        return self._events([("content", f"{prompt} and so on")])

    def stream_chat(self, messages: list[dict[str, Any]], params: SamplingParams, **chat: Any) -> Iterator[StreamEvent]:
        self.calls.append({"messages": messages, "params": params, **chat})
        return self._events(script(messages))

    def _events(self, pieces: Sequence[tuple[str, str]]) -> Iterator[StreamEvent]:
        text = {"thinking": "", "content": ""}
        ids: list[int] = []
        try:
            for kind, piece in pieces:
                if kind == "wait":
                    time.sleep(float(piece))
                    continue
                if kind == "ctrl-c":
                    raise KeyboardInterrupt
                if kind == "fail":
                    raise ModelError(piece)
                text[kind] += piece
                ids.append(len(ids))
                yield StreamEvent(kind, piece, (ids[-1],))
            done = CompletionOutput(0, text["content"], ids, finish_reason=self.finish_reason, content=text["content"])
            yield StreamEvent("done", output=RequestOutput("0", None, [1, 2], [done], Metrics(2, len(ids), 0.5, 1.0)))
        finally:
            self.closed_streams += 1

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def script(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The pieces of the answer to the last message."""
    last = messages[-1]["content"]
    if last == "slow":
        return [piece for number in range(400) for piece in (("content", f"word{number} "), ("wait", "0.02"))]
    if last == "never":
        return [("thinking", "hm"), ("wait", "30")]
    if last == "think":
        return [("thinking", "secret "), ("thinking", "thoughts"), ("wait", "0.3"), ("content", "clear words")]
    if last == "fail":
        return [("content", "half "), ("fail", "the logits are not finite")]
    if last == "interrupt":
        return [("content", "half "), ("ctrl-c", "")]
    if last == "markdown":
        return [("content", character) for character in MARKDOWN]
    if last == "hostile":
        return [("content", character) for character in HOSTILE]
    return [("content", word + " ") for word in f"{len(messages)} messages, the last: {last}".split()]


def main() -> int:
    """`qwill` with the stand-in in place of the engine."""
    from qwill import cli
    from qwill.cli.commands import chat, run

    def load_model(_model: str, given: dict[str, Any]) -> StandIn:
        return StandIn(given.get("max_model_len", 1000), None if _model == "no-template" else "x")

    for module in (chat, run):
        module.load_model = load_model
    chat.count_prompt = lambda _llm, messages, _think: sum(len(m["content"].split()) for m in messages)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
