"""SamplingParams: hostile values are refused with the allowed range, good ones are kept as given."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams

HUGE = 10**5000
NUMBERS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "n", "max_tokens", "min_tokens", "logprobs",
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
        {"max_tokens": 1}, {"logprobs": 0},
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
     [HUGE], HUGE],
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
