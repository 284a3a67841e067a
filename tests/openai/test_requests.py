"""Bodies of requests: each field has the effect that OpenAI's and vLLM's documentation gives it, or is refused."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import RequestError
from qwill.openai.requests import (
    CHAT,
    COMPLETION,
    LABELS,
    ONE_WAY,
    REFUSED,
    ChatRequest,
    CompletionRequest,
    parse_body,
    read_chat,
    read_completion,
)
from qwill.sampling_params import SamplingParams, StructuredOutputsParams

MODEL_DEFAULTS = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**fields: Any) -> ChatRequest:
    return read_chat({"messages": HI, **fields}, MODEL_DEFAULTS)


def completion(**fields: Any) -> CompletionRequest:
    return read_completion({"prompt": "hi", **fields}, MODEL_DEFAULTS)


def test_what_a_request_leaves_open_is_the_models_own_default() -> None:
    request = chat()
    assert request.params == MODEL_DEFAULTS
    assert (request.model, request.stream, request.tools, request.enable_thinking) == (None, False, None, None)
    assert request.messages == HI


def test_null_is_as_good_as_not_given() -> None:
    nothing = dict.fromkeys(CHAT - {"messages"})
    assert chat(**nothing) == chat()
    assert chat(**dict.fromkeys((*LABELS, *ONE_WAY, *REFUSED))) == chat()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 0.5, "top_k": 3, "min_p": 0.1}, {"top_p": 0.5, "top_k": 3, "min_p": 0.1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"presence_penalty": 1, "frequency_penalty": -2}, {"presence_penalty": 1, "frequency_penalty": -2}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"seed": 7, "n": 3}, {"seed": 7, "n": 3}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"stop_token_ids": [1, 2], "ignore_eos": True}, {"stop_token_ids": (1, 2), "ignore_eos": True}),
        ({"max_tokens": 5, "min_tokens": 2}, {"max_tokens": 5, "min_tokens": 2}),
        ({"logit_bias": {"17": -100, "3": 1.5}}, {"logit_bias": {17: -100.0, 3: 1.5}}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
        ({"max_thinking_tokens": 9}, {"max_thinking_tokens": 9}),
        (
            {"structured_outputs": {"choice": ["yes", "no"]}},
            {"structured_outputs": StructuredOutputsParams(choice=("yes", "no"))},
        ),
        (
            {"structured_outputs": {"regex": "a+", "json": None}},
            {"structured_outputs": StructuredOutputsParams(regex="a+")},
        ),
        (
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": StructuredOutputsParams(json_object=True)},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            {"structured_outputs": StructuredOutputsParams(json=SCHEMA)},
        ),
        ({"response_format": {"type": "text"}}, {"structured_outputs": None}),
    ],
)
def test_a_sampling_field_means_the_same_at_both_addresses(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    for params in (chat(**fields).params, completion(**fields).params):
        assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 6, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
    ],
)
def test_a_chat_takes_the_old_and_the_new_name_of_the_limit(fields: dict[str, Any], most: int | None) -> None:
    assert chat(**fields).params.max_tokens == most


@pytest.mark.parametrize(("fields", "most"), [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 5}, 5)])
def test_a_completion_has_16_tokens_unless_it_says_otherwise(fields: dict[str, Any], most: int | None) -> None:
    assert completion(**fields).params.max_tokens == most


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_a_chats_two_fields_of_log_probabilities_are_one(fields: dict[str, Any], count: int | None) -> None:
    assert chat(**fields).params.logprobs == count


def test_a_completion_has_a_number_of_log_probabilities() -> None:
    assert completion().params.logprobs is None
    assert completion(logprobs=0).params.logprobs == 0
    assert completion(logprobs=5).params.logprobs == 5


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_has_openais_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_tools_and_thinking_reach_the_template() -> None:
    request = chat(tools=[TOOL], chat_template_kwargs={"enable_thinking": False})
    assert request.tools == [TOOL]
    assert request.enable_thinking is False
    assert chat(tools=[TOOL], tool_choice="none").tools is None
    assert chat(tools=[]).tools is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2**63}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, None),
        ({"max_thinking_tokens": -1}, "max_thinking_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"tempreature": 1}, "tempreature"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"echo": 0}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"store": True}, "store"),
        ({"user": 7}, "user"),
    ],
)
def test_what_is_wrong_is_refused_with_the_name_of_the_field(fields: dict[str, Any], param: str | None) -> None:
    for read in (chat, completion):
        with pytest.raises(RequestError) as refused:
            read(**fields)
        assert (refused.value.where or None) == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": HI * 2049}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [*HI, {"role": "boss", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"prompt": "hi"}, "prompt"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"tools": {}, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": ""}}]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": TOOL}, "tool_choice"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": 7}, "chat_template_kwargs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
def test_what_is_wrong_with_a_chat_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert refused.value.where == param


@pytest.mark.parametrize(
    "prompt", [None, [], {}, 7, True, [True], ["a", 1], [1, "a"], [[1], "a"], [[1.0]], ["x"] * 65, [None]]
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as refused:
        completion(prompt=prompt)
    assert refused.value.where == "prompt"


@pytest.mark.parametrize("body", [None, [], "x", 7])
def test_a_body_is_an_object(body: Any) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(RequestError, match="object"):
            read(body, MODEL_DEFAULTS)


def test_an_unknown_field_is_told_with_the_nearest_one() -> None:
    with pytest.raises(RequestError) as refused:
        chat(temprature=1)
    assert (refused.value.code, refused.value.hint) == ("unknown_parameter", "did you mean temperature?")


def test_a_field_with_an_endless_name_is_told_at_once() -> None:
    began = time.process_time()
    with pytest.raises(RequestError) as refused:
        chat(**{"temperature" * 500_000: 1})
    assert time.process_time() - began < 1
    assert len(refused.value.what) < 200


def test_labels_are_accepted() -> None:
    assert chat(user="me", metadata={"a": "b"}, store=False, parallel_tool_calls=True, service_tier="auto") == chat()
    assert completion(user="me", echo=False, best_of=1, suffix="") == completion()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(CHAT | COMPLETION | {"tools", "unknown"})), VALUES, max_size=4))
def test_any_values_are_read_or_refused(fields: dict[str, Any]) -> None:
    for read, base in ((read_chat, {"messages": HI}), (read_completion, {"prompt": "x"})):
        with contextlib.suppress(RequestError):
            assert isinstance(read({**base, **fields}, MODEL_DEFAULTS).params, SamplingParams)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"}",
        b'{"a": 1} {"a": 1}',
        b'\xff\xfe{\x00"\x00',
    ],
)
def test_bytes_that_are_no_json_object_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        parse_body(data)
    assert refused.value.code == "invalid_json"


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), st.integers() | st.none(), max_size=3))
def test_a_json_object_is_read_as_json_reads_it(body: dict[str, Any]) -> None:
    assert parse_body(b" " + json.dumps(body).encode() + b"\r\n") == body


@pytest.mark.parametrize(
    ("module", "kind", "known"),
    [
        ("openai.types.chat.completion_create_params", "CompletionCreateParamsBase", CHAT),
        ("openai.types.completion_create_params", "CompletionCreateParamsBase", COMPLETION),
    ],
)
def test_every_field_of_the_official_client_is_known(module: str, kind: str, known: frozenset[str]) -> None:
    pytest.importorskip("openai")
    official = set(typing.get_type_hints(getattr(importlib.import_module(module), kind)))
    told_about = known | set(LABELS) | set(ONE_WAY) | set(REFUSED)
    assert official - told_about == set()
