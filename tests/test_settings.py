"""Settings: what is refused, with which words, and how counts are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import SettingError
from qwill.settings import EngineSettings, check_settings, parse_count, setting, settings_of, shown, with_overrides


@dataclass(frozen=True)
class Example:
    whole: int = setting(1, "a whole number", low=0, high=10)
    maybe: int | None = setting(None, "a whole number or nothing", low=0, high=2**63 - 1)
    real: float = setting(0.5, "a number", low=0.0, high=1.0)
    open_ended: float = setting(1.0, "a number without an upper end", low=0.0)
    free: float = setting(0.0, "any number")
    flag: bool = setting(False, "a switch")
    word: str = setting("a", "one of two words", choices=("a", "b"))
    text: str = setting("", "any text")
    table: dict[str, int] = setting({}, "a mapping")

    def __post_init__(self) -> None:
        check_settings(self)


HUGE = 10**5000  # float() overflows on it, and repr() refuses to write it out
NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, True, False, "1", "NaN", b"1", None, [], [1], {}, 1j, object()]


def kind(value: object) -> str:
    """A test's name that is the same in every process."""
    return type(value).__name__


@pytest.mark.parametrize("name", ["whole", "real", "open_ended", "free"])
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=kind)
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        Example(**{name: value})


@pytest.mark.parametrize("name", ["open_ended", "free"])
def test_whole_numbers_larger_than_any_float_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} = .*is not finite"):
        Example(**{name: HUGE})


@pytest.mark.parametrize("value", [-1, 11, 2**63, -(2**63), HUGE, -HUGE, 0.5, 1.0, -0.5], ids=kind)
def test_whole_numbers_are_whole_and_in_range(value: Any) -> None:
    with pytest.raises(SettingError, match="allowed: 0 … 10"):
        Example(whole=value)


@pytest.mark.parametrize("value", [-1, -5e-324, 1.0000001, 2, 1e308, 2**63, HUGE, -HUGE], ids=kind)
def test_real_numbers_are_in_range(value: Any) -> None:
    with pytest.raises(SettingError, match="allowed: 0 … 1"):
        Example(real=value)


@pytest.mark.parametrize("value", [0, 1, "true", "", None, math.nan])
def test_switches_take_only_true_and_false(value: Any) -> None:
    with pytest.raises(SettingError, match="allowed: true or false"):
        Example(flag=value)


@pytest.mark.parametrize("value", ["c", "", "A", 1, None, True, b"a"])
def test_words_take_only_their_choices(value: Any) -> None:
    with pytest.raises(SettingError, match="allowed: one of a, b"):
        Example(word=value)


@pytest.mark.parametrize("value", [1, None, True, b"a"])
def test_text_takes_only_text(value: Any) -> None:
    with pytest.raises(SettingError, match="allowed: text"):
        Example(text=value)


@pytest.mark.parametrize(
    "good",
    [
        {"whole": 0},
        {"whole": 10},
        {"real": 0},
        {"real": -0.0},
        {"real": 1.0},
        {"maybe": None},
        {"maybe": 2**63 - 1},
        {"word": "b"},
    ],
    ids=repr,
)
def test_the_ends_of_each_range_are_allowed(good: dict[str, Any]) -> None:
    Example(**good)


def test_limits_are_written_out_exactly() -> None:
    with pytest.raises(SettingError, match=r"allowed: 0 … 9223372036854775807"):
        Example(maybe=2**63)
    assert settings_of(Example)["open_ended"].allowed() == "at least 0"
    assert settings_of(Example)["free"].allowed() == "any finite number"


def test_default_mappings_are_not_shared() -> None:
    first, second = Example(), Example()
    first.table["x"] = 1
    assert second.table == {}


def test_values_that_python_cannot_print_still_give_an_error_text() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for value in (HUGE, [HUGE], nested):
        assert "too long to show" in shown(value)
    assert len(shown("x" * 10_000)) == 100


def test_an_unknown_name_gets_the_nearest_known_one() -> None:
    with pytest.raises(SettingError, match="did you mean max_model_len"):
        with_overrides(EngineSettings(), {"max_modellen": 5})
    with pytest.raises(SettingError, match="known: dtype, quant"):
        with_overrides(EngineSettings(), {"zzz": 5})


def test_overrides_are_checked_and_leave_the_base_alone() -> None:
    base = EngineSettings()
    assert with_overrides(base, {"threads": 2}).threads == 2
    assert base.threads is None
    with pytest.raises(SettingError, match="threads = 0"):
        with_overrides(base, {"threads": 0})


def test_a_draft_model_is_given_where_one_is_used_and_only_there() -> None:
    EngineSettings(speculative="draft_model", draft_model="qwen3-0.6b")
    EngineSettings(speculative="prompt_lookup")
    for wrong in (
        {"speculative": "draft_model"},
        {"draft_model": "x"},
        {"speculative": "prompt_lookup", "draft_model": "x"},
    ):
        with pytest.raises(SettingError, match="do not fit together"):
            EngineSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:-1", "cuda:1000", "cuda:0\n", " cpu", "CPU", "meta"])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(SettingError, match="device"):
        EngineSettings(device=device)


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("8192", 8192), ("32k", 32768), (" 32 K ", 32768), ("1M", 2**20), ("2GiB", 2**31)]
)
def test_counts_may_carry_a_power_of_1024(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", " ", "k", "-1", "+1", "1.5k", "1e3", "0x10", "1_000", "NaN", "inf", "9" * 19, "٣", "1T", "1 2"]
)
def test_other_texts_are_no_counts(text: str) -> None:
    with pytest.raises(SettingError, match="is not a count"):
        parse_count(text)


@settings(deadline=None)
@given(st.integers(0, 10**18 - 1))
def test_every_plain_whole_number_is_read_back(number: int) -> None:
    assert parse_count(str(number)) == number
