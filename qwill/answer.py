"""Answer: the text of one request, piece by piece, from its tokens. Torch-free; knows no engine.

Tokens become text, stop strings are held back and cut off, and in a chat the text is split into thinking, content
and tool calls. What was once given out is never taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from qwill.chat import OutputParser
from qwill.outputs import CompletionOutput, StreamEvent
from qwill.sampling_params import SamplingParams
from qwill.tokenizer import Tokenizer

__all__ = ["Answer", "StopStrings"]


class StopStrings:
    """Finds the first stop string in text that arrives in pieces, and holds back what may become one."""

    def __init__(self, stops: Sequence[str], *, keep: bool) -> None:
        self._stops = stops
        self._keep = keep
        self._held = ""

    def push(self, text: str, *, ending: bool = True) -> tuple[str, str | None]:
        """New text in; text that can be given out, and the stop string if one is complete.

        With `ending` false, a stop string that is complete now is text like any other.
        """
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held] if ending else []
        if found:
            position, stop = min(found)
            return self._held[: position + (len(stop) if self._keep else 0)], stop
        safe = len(self._held) - self._longest_beginning()
        ready, self._held = self._held[:safe], self._held[safe:]
        return ready, None

    def finish(self) -> str:
        """What was held back; no stop string can come any more."""
        return self._held

    def _longest_beginning(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


class Answer:
    """Builds one `CompletionOutput`. `parser` splits a chat's text; None for plain text."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, index: int, parser: OutputParser | None) -> None:
        self.output = CompletionOutput(index)
        self._params = params
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stop, keep=params.include_stop_str_in_output)
        self._parser = parser
        self._unreported: tuple[int, ...] = ()  # tokens whose text is still held back

    def push(self, token_id: int, *, silent: bool = False) -> list[StreamEvent]:
        """Add a token; a `silent` one, which ended the answer, stays out of the text.

        When a stop string is complete, `output.finish_reason` is set and no more tokens may come.
        """
        self.output.token_ids.append(token_id)
        text = "" if silent else self._detokenizer.push(token_id)
        return self._take(text, (token_id,))

    def finish(self) -> list[StreamEvent]:
        """The last events, once `output.finish_reason` is set."""
        events = []
        if not isinstance(self.output.stop_reason, str):
            events += self._take(self._detokenizer.finish(), ())
        if not isinstance(self.output.stop_reason, str):
            events += self._emit(self._stops.finish())
        if self._parser is not None:
            events += self._events(self._parser.finish())
            self.output.content = self.output.content or ""
        if self._unreported:
            events.append(StreamEvent("content", token_ids=self._report()))
        return events

    def _take(self, text: str, token_ids: tuple[int, ...]) -> list[StreamEvent]:
        self._unreported += token_ids
        ready, stop = self._stops.push(text, ending=len(self.output.token_ids) >= self._params.min_tokens)
        if stop is not None:
            self.output.finish_reason, self.output.stop_reason = "stop", stop
        return self._emit(ready)

    def _emit(self, text: str) -> list[StreamEvent]:
        self.output.text += text
        if self._parser is not None:
            return self._events(self._parser.push(text))
        return [StreamEvent("content", text, self._report())] if text or self._unreported else []

    def _report(self) -> tuple[int, ...]:
        """The tokens that the next event carries: its own, and those before it that gave no text."""
        token_ids, self._unreported = self._unreported, ()
        return token_ids

    def _events(self, pieces: Sequence[tuple[str, object]]) -> list[StreamEvent]:
        """The parser's pieces as events, noted in the output."""
        events = []
        for kind, payload in pieces:
            if kind == "tool_call" and isinstance(payload, dict):
                self.output.tool_calls.append(payload)
                events.append(StreamEvent("tool_call", token_ids=self._report(), tool_call=payload))
            elif kind == "thinking":
                self.output.reasoning = (self.output.reasoning or "") + str(payload)
                events.append(StreamEvent("thinking", str(payload), self._report()))
            else:
                self.output.content = (self.output.content or "") + str(payload)
                events.append(StreamEvent("content", str(payload), self._report()))
        return events
