"""Values from the environment and from config files: what wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwill.cli.layers import Layer, known_keys, read_layers
from qwill.errors import UsageError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_layers_come_in_the_order_in_which_they_win(home: Path) -> None:
    write(home / "qwill.toml", "temperature = 0.2\nthreads = 2")
    user = write(home / ".config/qwill/config.toml", 'temperature = 0.3\nmodel = "smollm2-135m"')
    layers = read_layers({"QWILL_TEMPERATURE": "0.1", "QWILL_HOME": "/x", "PATH": "/bin"})
    assert layers == [
        Layer("environment", {"temperature": "0.1"}),
        Layer("qwill.toml", {"temperature": 0.2, "threads": 2}),
        Layer(str(user), {"temperature": 0.3, "model": "smollm2-135m"}),
    ]


def test_without_files_and_variables_there_is_nothing(home: Path) -> None:
    assert read_layers({}) == [Layer("environment", {})]


def test_an_empty_variable_is_as_good_as_none(home: Path) -> None:
    assert read_layers({"QWILL_SEED": ""}) == [Layer("environment", {})]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("temprature = 0.5", "temprature", "did you mean temperature?"),
        ("temperature 0.5", "TOML", "KEY = VALUE"),
        ("[run]\ntemperature = 1", "run", "doctor --config"),
        ("n = 3", "n", "doctor --config"),
        ("[temperature]\nx = 0", "temperature", "a number"),
        ("stop = [1, {}]", "stop", "texts in quotes"),
        ("stop = 5", "stop", "texts in quotes"),
        ("system = 5", "system", "text in quotes"),
        ("max_tokens = true", "max_tokens", "a whole number"),
        ("seed = 1.5", "seed", "a whole number"),
        ("think = 1", "think", "true or false"),
        ("logit_bias = 5", "logit_bias", "a table"),
        ("logit_bias = {65 = true}", "logit_bias", "a table"),
        (f"stop = {'[' * 5000}", "TOML", "KEY = VALUE"),
        (f"seed = {'9' * 5000}", "TOML", "KEY = VALUE"),
    ],
)
def test_a_config_file_with_a_mistake_is_refused_and_left_alone(home: Path, text: str, message: str, hint: str) -> None:
    path = write(home / "qwill.toml", text)
    with pytest.raises(UsageError, match=message) as refused:
        read_layers({})
    assert hint in refused.value.hint
    assert refused.value.where == "qwill.toml"
    assert path.read_text() == text


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"#" + b"x" * (1 << 20)])
def test_a_config_file_that_is_no_text_or_too_large_is_refused(home: Path, data: bytes) -> None:
    (home / "qwill.toml").write_bytes(data)
    with pytest.raises(UsageError):
        read_layers({})


def test_every_key_is_listed_once() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert {"model", "temperature", "max_model_len", "think", "quiet"} <= set(keys)


def test_a_config_file_that_may_not_be_looked_at_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        read_layers({})
