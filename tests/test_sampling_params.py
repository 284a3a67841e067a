"""SamplingParams: hostile values are refused with the allowed range, good ones are kept as given."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams, StructuredOutputsParams

HUGE = 10**5000
NUMBERS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "n", "max_tokens", "min_tokens", "logprobs", "max_thinking_tokens",
)  # fmt: skip
HOSTILE: list[Any] = [
    math.nan, math.inf, -math.inf, True, False, "1", "NaN", b"1", [], [1], {}, object(), 2**63, -(2**63), -3,
    HUGE, -HUGE,
]  # fmt: skip


def kind(value: object) -> str:
    """A test's name that is the same in every process."""
    return type(value).__name__


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    HOSTILE,
    ids=lambda value: f"{type(value).__name__}-{str(value)[:9] if value not in (HUGE, -HUGE) else 'huge'}",
)
def test_hostile_numbers_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{name} = .*\n.*allowed: "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 100.1), ("temperature", -5e-324), ("top_k", -1), ("top_k", 1.0), ("top_k", 2**31),
        ("top_p", 0.0), ("top_p", -0.0), ("top_p", 0), ("top_p", 1.01), ("min_p", 1.01), ("min_p", -0.01),
        ("repetition_penalty", 0.0), ("repetition_penalty", 0.009), ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1), ("seed", -1), ("seed", 1.0), ("n", 0), ("n", 17), ("max_tokens", 0),
        ("max_tokens", 2**31), ("min_tokens", -1), ("logprobs", 21), ("logprobs", -1), ("n", None), ("top_p", None),
        ("temperature", None), ("min_tokens", None), ("ignore_eos", 1), ("ignore_eos", None), ("ignore_eos", "true"),
        ("max_thinking_tokens", -1), ("max_thinking_tokens", 2**31),
        ("skip_special_tokens", 0), ("include_stop_str_in_output", "no"),
    ],
)  # fmt: skip
def test_values_outside_the_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "good",
    [
        {"temperature": 0}, {"temperature": -0.0}, {"temperature": 100.0}, {"temperature": 5e-324},
        {"top_k": 2**31 - 1}, {"top_p": 5e-324}, {"top_p": 1}, {"min_p": 1.0}, {"repetition_penalty": 0.01},
        {"presence_penalty": -2}, {"frequency_penalty": 2.0}, {"seed": 2**63 - 1}, {"seed": 0}, {"n": 16},
        {"max_tokens": 1}, {"logprobs": 0}, {"max_thinking_tokens": 0}, {"max_thinking_tokens": 2**31 - 1},
        {"logprobs": 20}, {"min_tokens": 5, "max_tokens": 5}, {"stop": None}, {"stop_token_ids": None},
    ],
    ids=repr,
)  # fmt: skip
def test_the_ends_of_each_range_are_allowed(good: dict[str, Any]) -> None:
    SamplingParams(**good)


@pytest.mark.parametrize(
    "stop",
    ["", [""], ["x" * 257], "x" * 257, ["a"] * 17, [1], [None], [b"a"], b"ab", 5, 0, False, True, 1.5, {"a": 1},
     iter(["a"]), HUGE],
    ids=kind,
)  # fmt: skip
def test_bad_stop_strings_are_refused(stop: Any) -> None:
    with pytest.raises(SettingError, match="stop"):
        SamplingParams(stop=stop)


@pytest.mark.parametrize(
    "ids",
    ["12", b"12", 5, 0, False, True, [True], [-1], [2**31], [1.0], ["1"], [None], [math.nan], {1: 2}, iter([1]),
     [HUGE], HUGE, list(range(1025))],
    ids=kind,
)  # fmt: skip
def test_bad_stop_token_ids_are_refused(ids: Any) -> None:
    with pytest.raises(SettingError, match="stop_token_ids"):
        SamplingParams(stop_token_ids=ids)


@pytest.mark.parametrize(
    "bias",
    [
        [], [1], "1", 5, {"1": 1.0}, {True: 1.0}, {-1: 1.0}, {2**31: 1.0}, {1.0: 1.0}, {1: math.nan}, {1: math.inf},
        {1: True}, {1: "1"}, {1: None}, {1: 100.5}, {1: -101}, {1: HUGE}, {HUGE: 1}, dict.fromkeys(range(1025), 0.0),
        [HUGE],
    ],
    ids=kind,
)  # fmt: skip
def test_bad_logit_bias_is_refused(bias: Any) -> None:
    with pytest.raises(SettingError, match="logit_bias"):
        SamplingParams(logit_bias=bias)


def test_lists_become_tuples_and_one_string_is_one_stop_string() -> None:
    params = SamplingParams(stop="ab", stop_token_ids=[3, 4])
    assert params.stop == ("ab",)
    assert params.stop_token_ids == (3, 4)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_logit_bias_is_copied() -> None:
    bias: dict[int, float] = {3: 1}
    params = SamplingParams(logit_bias=bias)
    bias[4] = 2.0
    assert params.logit_bias == {3: 1.0}


def test_more_min_tokens_than_max_tokens_is_refused() -> None:
    with pytest.raises(SettingError, match="min_tokens = 6 is larger than max_tokens = 5"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=-0.0).greedy
    assert not SamplingParams(temperature=5e-324).greedy
    assert not SamplingParams().greedy


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.lists(st.integers() | st.text(max_size=3) | st.floats(), max_size=3),
    st.dictionaries(st.integers() | st.text(max_size=3), st.floats() | st.integers(), max_size=3),
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*NUMBERS, "stop", "stop_token_ids", "logit_bias", "ignore_eos"]), ANYTHING))
def test_anything_is_either_kept_or_refused_with_a_hint(fields: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**fields)
    except SettingError as error:
        assert error.hint  # noqa: PT017  (either outcome is right)
        return
    assert all(math.isfinite(getattr(params, name)) for name in NUMBERS if getattr(params, name) is not None)


# --- structured outputs ----------------------------------------------------------------------------------------------


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["not"] = schema
    return schema


BAD_STRUCTURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "json_object off": {"json_object": False},
    "no choice": {"choice": []},
    "two": {"regex": "a", "choice": ["a"]},
    "json list": {"json": []},
    "json true": {"json": True},
    "json empty text": {"json": ""},
    "json broken": {"json": "{"},
    "json text of a list": {"json": "[1]"},
    "json NaN": {"json": {"enum": [math.nan]}},
    "json NaN text": {"json": '{"a": NaN}'},
    "json of an object": {"json": {"a": object()}},
    "json key": {"json": {(1, 2): 3}},
    "json huge": {"json": {"a": HUGE}},
    "json circular": {"json": circular()},
    "json deep": {"json": deep(65)},
    "json very deep": {"json": deep(100_000)},
    "json very deep text": {"json": '{"a":' * 10_000 + "1" + "}" * 10_000},
    "json large": {"json": {"enum": ["x" * 70_000]}},
    "json large text": {"json": '{"a": "' + "x" * 2**20 + '"}'},
    "json Chinese": {"json": {"enum": ["好" * 30_000]}},
    "json surrogate": {"json": {"enum": ["\ud800"]}},
    "regex empty": {"regex": ""},
    "regex bytes": {"regex": b"a"},
    "regex number": {"regex": 5},
    "regex large": {"regex": "a" * 65_537},
    "regex surrogate": {"regex": "\udfff"},
    "grammar empty": {"grammar": ""},
    "grammar list": {"grammar": ["start: x"]},
    "grammar large": {"grammar": "é" * 40_000},
    "choice text": {"choice": "ab"},
    "choice number": {"choice": [1]},
    "choice empty text": {"choice": ["a", ""]},
    "choice surrogate": {"choice": ["\ud800"]},
    "choice many": {"choice": ["a"] * 1025},
    "choice large": {"choice": ["a" * 400] * 200},
    "choice mapping": {"choice": {"a": 1}},
    "json_object number": {"json_object": 1},
    "json_object none": {"json_object": None},
}


@pytest.mark.parametrize("name", BAD_STRUCTURES)
def test_bad_structured_outputs_are_refused_with_a_hint(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        StructuredOutputsParams(**BAD_STRUCTURES[name])
    assert caught.value.hint
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "good",
    [
        {"json": {}},
        {"json": {"type": "object"}},
        {"json": '{"type": "object"}'},
        {"json": deep(64)},
        {"regex": " "},
        {"json": {"enum": ["好" * 20_000]}},
        {"regex": "a" * 65_536},
        {"grammar": 'start: "a"'},
        {"choice": ["a"] * 1024},
        {"choice": ("yes", " ")},
        {"json_object": True},
    ],
    ids=lambda good: str(good)[:20],
)
def test_structured_outputs_up_to_the_limits_are_kept(good: dict[str, Any]) -> None:
    structure = StructuredOutputsParams(**good)
    assert SamplingParams(structured_outputs=structure).structured_outputs is structure


def test_a_schema_is_kept_as_text_that_nobody_can_change() -> None:
    schema = {"type": "object", "properties": {"名": {"type": "string"}}}
    structure = StructuredOutputsParams(json=schema)
    again = StructuredOutputsParams(json=str(structure.json))
    expected = json.dumps(schema)
    schema["type"] = "array"
    assert json.loads(str(structure.json)) == json.loads(str(again.json)) == json.loads(expected)


@pytest.mark.parametrize("value", [{"json_object": True}, "json_object", True, [], 5], ids=kind)
def test_structured_outputs_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="structured_outputs"):
        SamplingParams(structured_outputs=value)
