"""Whole command lines: which value wins, and how mistakes are told. Run through `main`, with no engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwill.cli import main
from qwill.cli.commands import run as run_module


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, home: Path, make_stand_in: Any) -> list[dict[str, Any]]:
    """The values that `qwill run` was given, call by call."""
    values: list[dict[str, Any]] = []

    def load_model(model: str, given: dict[str, Any]) -> Any:
        values.append({"model": model, **given})
        return make_stand_in()

    monkeypatch.setattr(run_module, "load_model", load_model)
    monkeypatch.setattr("sys.stdin", None)
    return values


def test_flag_beats_environment_beats_local_file_beats_user_file(
    seen: list[dict[str, Any]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".config/qwill").mkdir(parents=True)
    (home / ".config/qwill/config.toml").write_text('seed = 4\ntop_k = 4\ntop_p = 0.4\nmin_p = 0.4\nstop = ["a", "b"]')
    (home / "qwill.toml").write_text("seed = 3\ntop_k = 3\ntop_p = 0.3")
    monkeypatch.setenv("QWILL_SEED", "2")
    monkeypatch.setenv("QWILL_TOP_K", "2")
    assert main(["run", "m", "hi", "--seed", "1"]) == 0
    sampling = {"seed": 1, "top_k": 2, "top_p": 0.3, "min_p": 0.4, "stop": ("a", "b")}
    assert seen == [{"model": "m", **sampling}]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("QWILL_OFFLINE", "1", {"offline": True}),
        ("QWILL_OFFLINE", "false", {"offline": False}),
        ("QWILL_THINK", "no", {"think": False}),
        ("QWILL_MAX_MODEL_LEN", "4k", {"max_model_len": 4096}),
        ("QWILL_SYSTEM", "be -- kind", {"system": "be -- kind"}),
    ],
)
def test_variables_are_read_as_their_flags_are(
    seen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: dict[str, Any]
) -> None:
    monkeypatch.setenv(variable, text)
    assert main(["run", "m", "hi"]) == 0
    assert seen == [{"model": "m", **expected}]


def test_the_model_may_be_a_flag_and_the_prompt_may_follow_two_dashes(seen: list[dict[str, Any]]) -> None:
    assert main(["run", "-m", "m", "hi"]) == 0
    assert main(["run", "m", "--", "--temperature of the sun?"]) == 0
    assert [call["model"] for call in seen] == ["m", "m"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tmep", "3"], ["unknown option: --tmep", "did you mean --temp?"]),
        (["--ctx-sise", "3"], ["did you mean --ctx-size?"]),
        (["--zzz"], ["qwill run --help", "put -- before a prompt"]),
        (["--temp"], ["--temp needs a value"]),
        (["--temp", "warm"], ["--temp", "warm"]),
        (["--temp", "nan"], ["temperature = nan", "at --temp", "allowed: 0 … 100"]),
        (["-c", "3x"], ["'3x' is not a count", "at -c", "32k"]),
        (["--seed", "1", "--seed", "2"], ["--seed"]),
        (["--min-tokens", "5", "-n", "2"], ["min_tokens"]),
        (["--raw", "--think"], ["--raw"]),
    ],
)
def test_a_mistyped_line_is_a_usage_error_before_anything_is_loaded(
    seen: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], words: list[str], told: list[str]
) -> None:
    assert main(["run", "m", "hi", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, seen) == ("", [])
    assert err.startswith("error: ")
    assert all(part in err for part in told)
    assert "Traceback" not in err


def test_a_missing_model_is_told_by_name(seen: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "MODEL is missing" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["environment", "qwill.toml"])
def test_a_bad_value_names_the_place_it_stands_in(
    seen: list[dict[str, Any]],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
) -> None:
    if source == "environment":
        monkeypatch.setenv("QWILL_TOP_P", "7")
    else:
        (home / "qwill.toml").write_text("top_p = 7")
    assert main(["run", "m", "hi"]) == 2
    assert source in capsys.readouterr().err


def test_a_config_key_of_another_command_is_no_mistake(seen: list[dict[str, Any]], home: Path) -> None:
    (home / "qwill.toml").write_text("history = false\nyes = true\nthreads = 1")
    assert main(["run", "m", "hi"]) == 0
    assert seen == [{"model": "m", "threads": 1}]


def test_values_of_every_type_come_from_a_config_file(seen: list[dict[str, Any]], home: Path) -> None:
    text = 'max_model_len = "4k"\nstop_token_ids = [5, 6]\nstop = ["a"]\nthink = true\ntemperature = 1'
    (home / "qwill.toml").write_text(text + "\n[logit_bias]\n65 = 100.0")
    assert main(["run", "m", "hi"]) == 0
    values = {"max_model_len": 4096, "stop_token_ids": (5, 6), "stop": ("a",), "think": True, "temperature": 1.0}
    assert seen == [{"model": "m", **values, "logit_bias": {65: 100.0}}]


def test_a_fraction_for_a_whole_number_in_the_environment_is_refused(
    seen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QWILL_SEED", "1.5")
    assert main(["run", "m", "hi"]) == 2
    assert "[seed] in environment" in capsys.readouterr().err
