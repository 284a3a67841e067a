"""The output parser: what it finds, and that how the text was cut never matters."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.chat_output import OutputParser

CALL = '<tool_call>\n{"name": "get", "arguments": {"x": 1}}\n</tool_call>'
GET = ("tool_call", {"name": "get", "arguments": {"x": 1}})


def parse(pieces: list[str], starts_in_thinking: bool = False) -> list[tuple[str, Any]]:
    """The events, neighbours of one kind joined."""
    parser = OutputParser(starts_in_thinking)
    joined: list[tuple[str, Any]] = []
    for kind, payload in [event for piece in pieces for event in parser.push(piece)] + parser.finish():
        if kind != "tool_call" and joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + payload)
        else:
            joined.append((kind, payload))
    return joined


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("Hello\n", [("content", "Hello\n")]),
        ("\n  Hello", [("content", "\n  Hello")]),
        ("", []),
        ("<think>\nhm\n\nyes\n</think>\n\nHi", [("thinking", "hm\n\nyes"), ("content", "Hi")]),
        (" \n<think>hm</think>Hi", [("thinking", "hm"), ("content", "Hi")]),
        ("<think>\n\n</think>\n\nHi", [("content", "Hi")]),
        ("<think>\nnever closed\n", [("thinking", "never closed")]),
        ("Use <think> here </think>.", [("content", "Use <think> here </think>.")]),
        (CALL, [GET]),
        (f"Looking.\n{CALL}\n{CALL}\n", [("content", "Looking."), GET, GET]),
        (f"<think>\nhm\n</think>\n\n{CALL}", [("thinking", "hm"), GET]),
        (f"{CALL}\n\nDone\n", [GET, ("content", "Done\n")]),
        ('<tool_call>{"name": "f"}', [("tool_call", {"name": "f", "arguments": {}})]),
    ],
)
def test_an_answer_is_split(text: str, events: list[tuple[str, Any]]) -> None:
    assert parse([text]) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("hm\n</think>\n\nHi", [("thinking", "hm"), ("content", "Hi")]),
        ("\n</think>\n\nHi", [("content", "Hi")]),
        ("hm", [("thinking", "hm")]),
    ],
)
def test_an_answer_to_a_prompt_that_opened_think_begins_with_thinking(text: str, events: list[Any]) -> None:
    assert parse([text], starts_in_thinking=True) == events


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {]}\n</tool_call>\n',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call> and more",
        "the <tool_call> tag\n\n",
        '<tool_call>\n{"name": "f", "argum',
        "<tool_call>\n  ",
        '<tool_call>{"name": ' + "[" * 100_000 + "</tool_call>",
        '<tool_call>{"name": ' + "9" * 10_000 + "}</tool_call>",
        "a <",
        "a </tool_ca",
        "<thin",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_tool_call_is_given_back_unchanged(text: str) -> None:
    assert parse([text]) == [("content", text)]


def test_a_closing_tag_inside_a_json_string_does_not_close() -> None:
    arguments = {"text": 'a</tool_call>"\\', "more": "</tool_call>"}
    body = json.dumps({"name": "say", "arguments": arguments})
    assert parse([f"<tool_call>{body}</tool_call>"]) == [("tool_call", {"name": "say", "arguments": arguments})]


def test_a_lost_quote_does_not_swallow_the_next_call() -> None:
    broken = '<tool_call>\n{"name: "f}\n</tool_call>'
    assert parse([f"{broken}\n{CALL}"]) == [("content", broken), GET]


def test_content_streams_while_it_comes() -> None:
    parser = OutputParser()
    assert [parser.push(piece) for piece in ("Hel", "lo <", "b>\n", "x")] == [
        [("content", "Hel")],
        [("content", "lo ")],
        [("content", "<b>")],
        [("content", "\nx")],
    ]


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    CALL,
    "\n",
    '"',
    "\\",
    "{",
    "}",
    "x",
    "<",
    " ",
    "</",
    "思",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10), st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_streamed_and_whole_answers_agree_for_every_cut(pieces: list[str], cuts: list[int], thinking: bool) -> None:
    text = "".join(pieces)
    ends = sorted(cuts)
    cut = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert parse(cut, thinking) == parse([text], thinking) == parse(list(text), thinking)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_text_without_tags_is_content_as_it_is(text: str) -> None:
    assert parse(list(text)) == ([("content", text)] if text else [])


HOSTILE = [
    "<tool_call>",
    "<tool_call>{",
    '<tool_call>{"',
    "<tool_call>{}</tool_call>",
    "[",
    "{",
    "<",
    "\n",
    " ",
    '"',
    "\\",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("before", ["", '<tool_call>{"name":'])
def test_hostile_repetition_takes_linear_time(text: str, before: str) -> None:
    # A quadratic parser needs minutes for the one large piece, or for the many small ones.
    for pieces in ([before, text * (500_000 // len(text))], [before, *[text] * 5_000]):
        parser = OutputParser()
        start = time.process_time()
        for piece in pieces:
            parser.push(piece)
        parser.finish()
        assert time.process_time() - start < 5
