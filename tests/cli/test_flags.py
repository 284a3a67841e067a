"""Flags come from the settings: every field has one, with the field's own words, range and check."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cyclopts import App
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.bench.prefill import PrefillSettings
from qwill.cli.flags import (
    FETCHING,
    NOT_ON_THE_COMMAND_LINE,
    AnswerFlags,
    ReportFlags,
    RunFlags,
    check_given,
    flags_of,
    picked,
)
from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings, settings_of

OWNERS = (AnswerFlags, SamplingParams, EngineSettings, RunFlags)
Flags = flags_of(*OWNERS)


def command(*, given: Flags | None = None) -> dict[str, Any]:  # type: ignore[valid-type]
    return dict(given or {})


APP = App(version_flags=(), help_format="plaintext")
APP.default(command)


def parse(*words: str) -> dict[str, Any]:
    """What the parser gives a command for these words."""
    function, bound, _ = APP.parse_args(words, print_error=False, exit_on_error=False)
    result: dict[str, Any] = function(*bound.args, **bound.kwargs)
    return result


@pytest.mark.parametrize("owner", OWNERS)
def test_every_field_is_a_flag_with_the_help_text_of_its_setting(
    owner: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    APP(["--help"], result_action="return_value")
    page = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, about in settings_of(owner).items():
        flag = "--" + name.replace("_", "-")
        assert (flag in page.split()) == (name not in NOT_ON_THE_COMMAND_LINE)
        if name not in NOT_ON_THE_COMMAND_LINE:
            assert all(alias in page for alias in about.aliases)
            assert about.help.split()[0] in page


Lengths = flags_of(PrefillSettings)


def measure(*, given: Lengths | None = None) -> None:  # type: ignore[valid-type]
    """A command whose flags have no bounds."""


def test_several_values_of_any_size_are_told_by_their_unit_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    app = App(version_flags=(), help_format="plaintext")
    app.default(measure)
    app(["--help"], result_action="return_value")
    page = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "lengths of the prompts [tokens; default 512, 2048]" in page


def test_only_what_was_given_is_passed_on() -> None:
    assert parse() == {}
    assert parse("--temp", "0.5", "-c", "32k") == {"temperature": 0.5, "max_model_len": 32768}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-t", "2"], {"threads": 2}),
        (["-s", "be kind"], {"system": "be kind"}),
        (["--system", "be kind"], {"system": "be kind"}),
        (["--ctx-size", "8K"], {"max_model_len": 8192}),
        (["-n", "7"], {"max_tokens": 7}),
        (["--predict", "7"], {"max_tokens": 7}),
        (["--repeat-penalty", "1.1"], {"repetition_penalty": 1.1}),
        (["--stop", "a b", "--stop=-"], {"stop": ("a b", "-")}),
        (["--stop=-x"], {"stop": ("-x",)}),
        (["--stop-token-ids", "1", "--stop-token-ids", "2"], {"stop_token_ids": (1, 2)}),
        (["--logit-bias", "3=1.5", "--logit-bias", "4=-100"], {"logit_bias": {3: 1.5, 4: -100.0}}),
        (["--presence-penalty", "-1"], {"presence_penalty": -1.0}),
        (["--think"], {"think": True}),
        (["--no-think"], {"think": False}),
        (["--no-stream", "--no-markdown"], {"stream": False, "markdown": False}),
        (["--raw-special", "--stats", "--json"], {"raw_special": True, "stats": True, "json": True}),
        (["-qv"], {"quiet": True, "verbose": True}),
        (["--offline", "--revision", "abc"], {"offline": True, "revision": "abc"}),
        (["--source", "pypi", "--endpoint", "http://x"], {"source": "pypi", "endpoint": "http://x"}),
        (["--offline=false"], {"offline": False}),
    ],
)  # fmt: skip
def test_names_and_aliases_mean_what_people_expect(words: list[str], expected: dict[str, Any]) -> None:
    assert parse(*words) == expected


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--temperature", "nan"], "0 … 100"),
        (["--temperature", "-1"], "0 … 100"),
        (["--top-p", "1.5"], "0 … 1"),
        (["--top-p", "inf"], "0 … 1"),
        (["--ctx-size", "32x"], "32k"),
        (["--ctx-size", "-1"], "32k"),
        (["--threads", "0"], "1 … 1024"),
        (["--dtype", "int3"], "bfloat16"),
        (["--device", "gpu"], "cuda"),
        (["--stop", ""], "1 … 256"),
        (["--logit-bias", "x=1"], "151645=-100"),
        (["--logit-bias", "1=900"], "-100 … 100"),
        (["--stop-token-ids", "-4"], "vocabulary"),
        (["--stop-token-ids", "5.5"], "digits"),
        (["--seed", "1.9"], "digits"),
        (["--threads", "1.9"], "digits"),
        (["--seed", "9" * 5000], "digits"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(words: list[str], allowed: str) -> None:
    with pytest.raises(Exception) as refused:  # noqa: PT011 (the parser wraps ours; see test_parser)
        parse(*words)
    assert isinstance(refused.value.__cause__, SettingError)
    assert allowed in refused.value.__cause__.hint


@settings(max_examples=15, deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**70), 2**70))
def test_a_flag_takes_exactly_what_the_dataclass_takes(temperature: float, top_k: int) -> None:
    def outcome(make: Any) -> bool:
        try:
            make()
        except Exception:
            return False
        return True

    assert outcome(lambda: parse(f"--temperature={temperature!r}")) == outcome(
        lambda: SamplingParams(temperature=temperature)
    )
    assert outcome(lambda: parse(f"--top-k={top_k}")) == outcome(lambda: SamplingParams(top_k=top_k))


def test_a_command_can_take_a_part_of_the_settings() -> None:
    fields = flags_of(FETCHING, ReportFlags).__origin__.__annotations__
    assert set(fields) == {"source", "revision", "endpoint", "offline", "verbose", "quiet", "json"}


def test_given_values_go_to_the_dataclass_they_belong_to() -> None:
    values = {"temperature": 0.5, "threads": 2, "system": "x"}
    assert picked(values, SamplingParams) == {"temperature": 0.5}
    assert picked(values, EngineSettings) == {"threads": 2}
    assert picked({"threads": 2, "source": "pypi"}, FETCHING) == {"source": "pypi"}
    assert picked(None, EngineSettings) == {}


def test_values_that_do_not_fit_together_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SettingError, match="min_tokens"):
        check_given({"min_tokens": 5, "max_tokens": 2}, SamplingParams, EngineSettings)


def test_no_two_owners_have_a_field_of_one_name() -> None:
    names = [field.name for owner in OWNERS for field in dataclasses.fields(owner)]
    assert len(names) == len(set(names))
