"""What a chat is called with: what is let in, in which form, and the words of each refusal."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

from qwill.errors import PromptError
from qwill.messages import check_keywords, check_messages, check_tools

USER = {"role": "user", "content": "hi"}


def call(arguments: Any) -> dict[str, Any]:
    """An assistant's message with one tool call."""
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def checked_arguments(arguments: Any) -> Any:
    return check_messages([call(arguments)])[0]["tool_calls"][0]["function"]["arguments"]


def test_content_becomes_a_list_of_texts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([USER, {"role": "user", "content": parts}]) == [
        {"role": "user", "content": ["hi"]},
        {"role": "user", "content": ["a", "b"]},
    ]


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": None, "tool_calls": None, "refusal": None}])
def test_an_assistant_may_say_nothing(message: dict[str, Any]) -> None:
    assert check_messages([{"role": "assistant", **message}]) == [{"role": "assistant", "content": []}]


def test_arguments_in_json_text_become_an_object() -> None:
    assert checked_arguments('{"x": [1, "é"]}') == {"x": [1, "é"]}
    assert checked_arguments({"x": 1}) == {"x": 1}
    assert checked_arguments("") == checked_arguments(None) == {}


def test_a_tool_call_may_lack_its_wrapper() -> None:
    flat = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"x": 1}'}]}
    assert check_messages([flat])[0]["tool_calls"] == [{"name": "f", "arguments": {"x": 1}}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_name(name: str) -> None:
    message = {"role": "assistant", "content": "a", name: "r"}
    assert check_messages([message])[0]["reasoning_content"] == "r"


def test_what_was_given_is_copied_and_not_changed() -> None:
    given = [call('{"x": 1}'), {"role": "tool", "content": "ok", "tool_call_id": "1", "name": None}]
    plain = check_messages(given)
    assert given[0]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert plain[1] == {"role": "tool", "content": ["ok"], "tool_call_id": "1"}
    assert plain[0]["tool_calls"] is not given[0]["tool_calls"]


def test_subclasses_become_plain_types() -> None:
    class Role(enum.StrEnum):
        USER = "user"

    class Text(str):
        pass

    message = check_messages([{"role": Role.USER, "content": "x", "name": Text("n"), "more": (1, True)}])[0]
    assert [type(value) for value in message.values()] == [str, str, list, list]
    assert message == {"role": "user", "name": "n", "more": [1, True], "content": ["x"]}


NESTED: Any = []
for _ in range(100):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hi", "messages must be a list"),
        (USER, "messages must be a list"),
        (None, "messages must be a list"),
        ([], "messages is empty"),
        (["hi"], "messages[0] must be an object with a role, this is str"),
        ([USER, {"content": "x"}], "messages[1].role = None is not a role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role = 'robot' is not a role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role = ['user'] is not a role"),
        ([{"role": "user"}], "messages[0].content must be text or a list of text parts, this is NoneType"),
        ([{"role": "user", "content": 3}], "messages[0].content must be text or a list of text parts, this is int"),
        ([{"role": "user", "content": b"x"}], "messages[0].content must be text"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content must be text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0] is not a text part"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0] is not a text part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text must be text"),
        ([{**USER, "tool_calls": [{"name": "f"}]}], "messages[0].tool_calls: only the assistant calls tools"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [3]}], "messages[0].tool_calls[0] must be an object with a name"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function must be an"),
        ([call("{")], "messages[0].tool_calls[0].function.arguments is not JSON"),
        ([call("[" * 100_000)], "messages[0].tool_calls[0].function.arguments is not JSON"),
        ([call("[1]")], "messages[0].tool_calls[0].function.arguments must be an object, this is list"),
        ([call('{"x": NaN}')], "messages[0].tool_calls[0].function.arguments.x is not a JSON value: nan"),
        ([call({"x": {1, 2}})], "messages[0].tool_calls[0].function.arguments.x is not a JSON value"),
        ([call({1: 2})], "messages[0].tool_calls[0].function.arguments has a key that is not text: 1"),
        ([call({"x": np.zeros(2)})], "function.arguments.x is not a JSON value"),
        ([{**USER, "x": NESTED}], "is nested more than 64 levels deep"),
        ([{**USER, "reasoning": 3}], "messages[0].reasoning_content must be text"),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(messages: Any, problem: str) -> None:
    with pytest.raises(PromptError) as caught:
        check_messages(messages)
    assert problem in caught.value.what


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ("x", "tools must be a list"),
        ({"name": "f"}, "tools must be a list"),
        ([{"name": "f"}, print], "tools[1] must be a JSON schema, this is builtin_function_or_method"),
        ([{"name": b"f"}], "tools[0].name is not a JSON value"),
    ],
)
def test_malformed_tools_are_refused_with_their_place(tools: Any, problem: str) -> None:
    with pytest.raises(PromptError) as caught:
        check_tools(tools)
    assert problem in caught.value.what


def test_tools_are_copied() -> None:
    tools = [{"type": "function", "function": {"name": "f", "strict": None}}]
    assert check_tools(tools) == tools
    assert check_tools(None) is None


@pytest.mark.parametrize(
    "keywords",
    [
        {"chat_template": "x"},
        {"tokenize": True},
        {"messages": "x"},
        {"bos_token": "x"},
        {"_x": 1},
        {"x": [1]},
        {"x": {}},
    ],
)
def test_reserved_names_and_structures_are_no_keywords(keywords: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match=next(iter(keywords))):
        check_keywords(keywords, None)


def test_single_values_are_keywords() -> None:
    keywords = {"a": "x", "b": 1, "c": 1.5, "d": None, "e": True}
    assert check_keywords(keywords, None) == keywords
    assert check_keywords({}, False) == {"enable_thinking": False}


@pytest.mark.parametrize("value", ["yes", 1, 0, [True]])
def test_enable_thinking_is_a_boolean(value: Any) -> None:
    with pytest.raises(PromptError, match="enable_thinking"):
        check_keywords({}, value)
