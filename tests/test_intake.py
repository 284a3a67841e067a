"""What a user asks for becomes jobs, or an error that names what is wrong with it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import PromptError, SettingError, TemplateError
from qwill.grammar import Grammars
from qwill.intake import Intake
from qwill.request import Request
from qwill.sampling_params import SamplingParams
from qwill.tokenizer import Tokenizer

DEFAULT = SamplingParams(temperature=0.5)
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_chat_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_chat_model)


@pytest.fixture
def intake(tokenizer: Tokenizer) -> Intake:
    return Intake(
        tokenizer, Grammars(tokenizer, 261, [256, 258]), vocab_size=311, max_model_len=64, default_params=DEFAULT
    )


def only_request(intake: Intake, **options: Any) -> Request:
    [job] = intake.prompts("hello", None, options)
    return job.requests[0]


def test_a_prompt_becomes_its_ids_with_the_defaults_of_the_model(intake: Intake, tokenizer: Tokenizer) -> None:
    request = only_request(intake)
    assert request.prompt_token_ids == tokenizer.encode("hello")
    assert request.params is DEFAULT
    assert request.max_tokens == 64 - 5
    assert (request.priority, request.deadline, request.cache_salt, request.use_cache) == (0, None, "", True)
    assert request.thinking == "no"


def test_options_reach_the_request(intake: Intake) -> None:
    request = only_request(intake, priority=-3, cache_salt="tenant", use_cache=False, request_id="mine")
    assert (request.priority, request.cache_salt, request.use_cache) == (-3, "tenant", False)
    assert request.request_id == "mine"


def test_a_timeout_counts_from_the_call_on(intake: Intake) -> None:
    before = time.monotonic()
    deadline = only_request(intake, timeout=5).deadline
    assert deadline is not None
    assert before + 5 <= deadline <= time.monotonic() + 5


def test_requests_are_numbered_unless_they_are_named(intake: Intake) -> None:
    jobs = [*intake.prompts(["a", "b"], None, {}), *intake.prompts("c", None, {})]
    assert [job.output.request_id for job in jobs] == ["0", "1", "2"]
    named = intake.prompts(["a", "b"], None, {"request_id": ["x", "y"]})
    assert [job.requests[0].request_id for job in named] == ["x", "y"]


@pytest.mark.parametrize("names", ["x", ["x"], ["x", "x"], ["x", 1], 5, ["x", "y", "z"]])
def test_each_of_several_prompts_needs_its_own_name(intake: Intake, names: Any) -> None:
    with pytest.raises(SettingError, match="request_id"):
        intake.prompts(["a", "b"], None, {"request_id": names})


def test_each_prompt_may_have_its_own_parameters(intake: Intake) -> None:
    several = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=4, n=2)]
    jobs = intake.prompts(["a", "b"], several, {})
    assert [job.requests[0].max_tokens for job in jobs] == [3, 4]
    assert [len(job.requests) for job in jobs] == [1, 2]
    assert [job.requests[0].max_tokens for job in intake.conversations([TALK, TALK], several, {})] == [3, 4]


def test_parameters_of_the_wrong_kind_are_named_by_their_index(intake: Intake) -> None:
    with pytest.raises(SettingError, match=r"sampling_params\[1\]"):
        intake.prompts(["a", "b"], [DEFAULT, {"temperature": 0}], {})  # type: ignore[list-item]
    with pytest.raises(SettingError, match="3 SamplingParams for 2 prompts"):
        intake.prompts(["a", "b"], [DEFAULT] * 3, {})


def test_a_bad_prompt_of_several_is_named_by_its_index(intake: Intake) -> None:
    with pytest.raises(PromptError, match=r"prompt 1, prompt position 0"):
        intake.prompts(["a", [999]], None, {})
    with pytest.raises(PromptError, match=r"prompt 1"):
        intake.conversations([TALK, [{"role": "nobody"}]], None, {})


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 1.5},
        {"priority": True},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": 10**400},
        {"timeout": "5"},
        {"cache_salt": b"x"},
        {"use_cache": 1},
        {"raw_special": None},
        {"request_id": b"x"},
        {"tools": []},
    ],
)
def test_options_that_cannot_be_are_refused(intake: Intake, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        intake.prompts("a", None, options)


def test_a_mistyped_option_is_told_the_nearest_one(intake: Intake) -> None:
    with pytest.raises(SettingError, match="did you mean priority"):
        intake.prompts("a", None, {"prioritty": 1})


@pytest.mark.parametrize(("enable_thinking", "thinking"), [(None, "may"), (False, "no"), (True, "open")])
def test_where_a_chat_s_answer_begins(intake: Intake, enable_thinking: bool | None, thinking: str) -> None:
    [job] = intake.conversations(TALK, None, {"enable_thinking": enable_thinking})
    assert job.requests[0].thinking == thinking
    assert job.output.prompt is not None


def test_a_template_without_thinking_cannot_think(tokenizer: Tokenizer, tiny_chat_model: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "plain"
    shutil.copytree(tiny_chat_model, folder)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer.load(folder)
    grammars = Grammars(tokenizer, 261, [256, 258])
    intake = Intake(tokenizer, grammars, vocab_size=311, max_model_len=64, default_params=DEFAULT)
    assert intake.conversations(TALK, None, {})[0].requests[0].thinking == "no"


def test_a_model_without_template_takes_no_conversation(tiny_chat_model: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "base"
    shutil.copytree(tiny_chat_model, folder)
    (folder / "tokenizer_config.json").write_text("{}")
    tokenizer = Tokenizer.load(folder)
    grammars = Grammars(tokenizer, 261, [256, 258])
    intake = Intake(tokenizer, grammars, vocab_size=311, max_model_len=64, default_params=DEFAULT)
    with pytest.raises(TemplateError):
        intake.conversations(TALK, None, {})


def test_greedy_thinking_is_warned_of_once(intake: Intake, caplog: pytest.LogCaptureFixture) -> None:
    greedy = SamplingParams(temperature=0)
    with caplog.at_level(logging.WARNING, "qwill"):
        intake.conversations(TALK, greedy, {"enable_thinking": False})
        assert caplog.messages == []
        intake.conversations([TALK, TALK], greedy, {})
    assert len(caplog.messages) == 1
