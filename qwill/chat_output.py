"""What a chat model wrote, split while it is being written: thinking, content, tool calls.

    <think>\\n … \\n</think>\\n\\n          thinking; only at the very start of an answer
    <tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>      a tool call (the Hermes format that Qwen uses)
    everything else                      content

Text is held back only while it may still turn out to be a tag, or to be the line breaks around one. Every character
is looked at once, so the time is linear in the text whatever the model writes. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NoReturn

__all__ = ["OutputEvent", "OutputParser"]

OutputEvent = tuple[Literal["thinking", "content"], str] | tuple[Literal["tool_call"], dict[str, Any]]

_THINK, _END_THINK = "<think>", "</think>"
_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_MOST_LEADING_SPACE = 64  # characters before <think> that are waited for
_VISIBLE = re.compile(r"\S")
_OUTSIDE_STRING = re.compile(rf'"|{_END_CALL}')
_INSIDE_STRING = re.compile(r'["\\\n]')


class OutputParser:
    """Takes an answer's text in pieces; the events do not depend on where the pieces were cut.

    `starts_in_thinking`: the prompt already opened `<think>`, so the answer begins with thinking. Otherwise an answer
    without `<think>` at its start is content from its first character on.
    """

    def __init__(self, starts_in_thinking: bool = False) -> None:
        self._text = ""  # what is not yet decided on begins at _at
        self._at = 0
        self._newlines = 0  # line breaks held back, because a tag behind them would swallow them
        self._trimming = starts_in_thinking  # at the start of a part, where line breaks are dropped
        self._call: list[str] = []  # the text of the tool call being read, from <tool_call> on
        self._in_string = False  # within that call's JSON
        self._events: list[OutputEvent] = []
        self._step = self._thinking if starts_in_thinking else self._start

    def push(self, text: str) -> list[OutputEvent]:
        """The events that this new text completes."""
        self._text, self._at = self._text[self._at :] + text, 0
        while self._step():
            pass
        return self._take_events()

    def finish(self) -> list[OutputEvent]:
        """The last events: whatever was held back. A tool call that was never closed counts if its JSON is whole."""
        rest = self._take(len(self._text))
        if self._call:
            self._call.append(rest)
            self._close_call()
        elif self._step == self._thinking:
            self._emit("thinking", rest)
            self._newlines = 0
        else:
            self._emit("content", rest)
        if self._newlines:
            self._events.append(("content", "\n" * self._newlines))
            self._newlines = 0
        return self._take_events()

    def _take(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        return taken

    def _take_events(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events

    # Each step decides on some text from self._at on, and returns whether the next step can go on at once.

    def _start(self) -> bool:
        start = _first_visible(self._text, 0)
        if start > _MOST_LEADING_SPACE:
            start = 0
        if self._text.startswith(_THINK, start):
            self._at = start + len(_THINK)
            self._begin(self._thinking)
            return True
        if _THINK.startswith(self._text[start : start + len(_THINK)]):
            return False
        self._step = self._content
        return True

    def _thinking(self) -> bool:
        if not self._emit_until(_END_THINK, "thinking"):
            return False
        self._begin(self._content)
        return True

    def _content(self) -> bool:
        if not self._emit_until(_CALL, "content"):
            return False
        self._call.append(_CALL)
        self._step = self._before_call
        return True

    def _before_call(self) -> bool:
        self._call.append(self._take(_first_visible(self._text, self._at)))
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "{":
            self._in_string = False
            self._step = self._within_call
        else:
            self._give_back_call()
        return True

    def _within_call(self) -> bool:
        position = self._at
        while match := (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(self._text, position):
            if match[0] == _END_CALL:
                self._call.append(self._take(match.end()))
                self._close_call()
                return True
            if match[0] == "\\":
                if match.end() == len(self._text):
                    self._call.append(self._take(match.start()))
                    return False
                position = match.end() + 1
            else:  # a quote; or a line break, which no JSON string may hold: do not let a lost quote eat the answer
                self._in_string = not self._in_string
                position = match.end()
        held = 0 if self._in_string else _overlap(self._text, _END_CALL, position)
        self._call.append(self._take(len(self._text) - held))
        return False

    def _begin(self, step: Callable[[], bool]) -> None:
        self._newlines, self._trimming, self._step = 0, True, step

    def _close_call(self) -> None:
        call = _parse_call("".join(self._call).removeprefix(_CALL).removesuffix(_END_CALL))
        if call is None:
            self._give_back_call()
        else:
            self._call.clear()
            self._events.append(("tool_call", call))
            self._begin(self._content)

    def _give_back_call(self) -> None:
        text = "".join(self._call)
        self._call.clear()
        self._step = self._content
        self._emit("content", text)

    def _emit_until(self, tag: str, kind: Literal["thinking", "content"]) -> bool:
        """Give out what comes before the tag; True when the tag was there (it is dropped)."""
        start = self._text.find(tag, self._at)
        found = start >= 0
        self._emit(kind, self._take(start if found else len(self._text) - _overlap(self._text, tag, self._at)))
        self._at += len(tag) if found else 0
        return found

    def _emit(self, kind: Literal["thinking", "content"], text: str) -> None:
        if self._trimming:
            text = text.lstrip("\n")
        if not text:
            return
        self._trimming = False
        body = text.rstrip("\n")
        if body:
            self._events.append((kind, "\n" * self._newlines + body))
            self._newlines = 0
        self._newlines += len(text) - len(body)


def _first_visible(text: str, start: int) -> int:
    match = _VISIBLE.search(text, start)
    return match.start() if match else len(text)


def _overlap(text: str, tag: str, start: int) -> int:
    """Length of the longest end of `text` (from `start` on) that is a beginning of `tag`."""
    longest = min(len(tag) - 1, len(text) - start)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def _parse_call(body: str) -> dict[str, Any] | None:
    """{"name": …, "arguments": {…}}, or None when the text is not such a call."""
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    return {"name": call["name"], "arguments": arguments} if isinstance(arguments, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
