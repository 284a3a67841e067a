"""explain: one answer of the engine, looked at from all sides; its numbers are those of the engine itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import ContextLengthError, SettingError
from qwill.llm import LLM
from qwill.report import SECTIONS, Report, explain
from qwill.report.explain import ALTERNATIVES, WHAT_IFS
from qwill.sampling_params import StructuredOutputsParams

PROMPT = "ROMEO: 你好 👩‍👩‍👧"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The small model that is packaged."""
    with LLM("tiny", threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def report(llm: LLM) -> Report:
    """A greedy answer."""
    return explain(llm, PROMPT, llm.params(temperature=0.0, max_tokens=10), read_bandwidth=1e10)


def test_every_section_is_there(report: Report) -> None:
    assert list(report.views) == list(SECTIONS)
    assert report.missing == {}


def test_the_tokens_are_those_of_the_same_answer_without_a_report(llm: LLM, report: Report) -> None:
    output = llm.chat([{"role": "user", "content": PROMPT}], llm.params(temperature=0.0, max_tokens=10))[0]
    tokens = report.views["tokens"]["tokens"]
    assert [token["id"] for token in tokens] == output.prompt_token_ids + output.outputs[0].token_ids
    assert [token["part"] for token in tokens].count("answer") == 10
    assert report.about.answer == output.outputs[0].text


def test_all_sections_speak_of_the_same_positions(report: Report) -> None:
    count = len(report.views["tokens"]["tokens"])
    assert len(report.views["probabilities"]["positions"]) == count
    # The last token of an answer is never computed.
    assert report.views["attention"]["num_tokens"] == report.views["logit_lens"]["positions"][-1] + 1 == count - 1
    assert report.views["rotary"]["positions"] == count - 1


def test_other_tokens_were_tried_and_share_the_beginning_in_the_cache(report: Report) -> None:
    what_ifs = report.views["probabilities"]["what_if"]
    assert len(what_ifs) == WHAT_IFS * ALTERNATIVES
    cache = report.views["kv_cache"]
    assert len(cache["requests"]) == len(what_ifs) + 1
    assert cache["requests"][0]["cached_tokens"] == 0
    assert all(request["cached_tokens"] > 0 for request in cache["requests"][1:])
    assert [step["index"] for step in cache["steps"]] == list(range(len(cache["steps"])))


def test_time_is_that_of_the_answer_alone(report: Report) -> None:
    phases = {phase["phase"]: phase for phase in report.views["roofline"]["phases"]}
    assert phases["decode"]["tokens"] == 9
    assert report.views["roofline"]["read_bandwidth"] == 1e10


def test_a_second_report_of_the_same_prompt_is_computed_from_its_first_token(llm: LLM) -> None:
    for _ in range(2):
        report = explain(llm, PROMPT, llm.params(max_tokens=2))
        assert report.views["attention"]["first"] == 0


def test_a_raw_prompt_is_continued_as_it_is(llm: LLM) -> None:
    report = explain(llm, "To be", llm.params(max_tokens=2), raw=True)
    tokens = report.views["tokens"]["tokens"]
    assert [token["id"] for token in tokens if token["part"] == "prompt"] == llm.tokenize("To be")


def test_an_answer_that_follows_a_grammar_has_no_other_continuations(llm: LLM) -> None:
    params = llm.params(max_tokens=4, structured_outputs=StructuredOutputsParams(choice=("yes", "no")))
    report = explain(llm, "Is it so?", params, raw=True)
    assert report.about.answer in ("yes", "no")
    assert report.missing == {}
    assert report.views["probabilities"]["what_if"] == []


def test_progress_is_told_step_by_step(llm: LLM) -> None:
    told: list[str] = []
    explain(llm, "x", llm.params(max_tokens=1), say=told.append)
    assert told == ["answering, and watching", *(f"looking: {title}" for title in SECTIONS.values())]


def test_what_a_report_has_no_room_for_is_refused_before_anything_is_computed(llm: LLM) -> None:
    steps = llm.stats.steps
    with pytest.raises(ContextLengthError, match="room for 2048 tokens"):
        explain(llm, "x", llm.params(max_tokens=2048))
    with pytest.raises(SettingError, match="one answer"):
        explain(llm, "x", llm.params(n=2))
    assert llm.stats.steps == steps


@pytest.mark.weights
@pytest.mark.slow
def test_512_tokens_of_a_real_model_are_a_page_of_at_most_15_megabytes(qwen_coder_gguf: Path, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog, and 敏捷的棕色狐狸 🦊 does it again. " * 30
    with LLM(qwen_coder_gguf) as llm:
        ids = llm.tokenize(text)[:480]
        report = explain(
            llm, llm.tokenizer.decode(ids), llm.params(max_tokens=32, temperature=0.0, ignore_eos=True), raw=True
        )
    assert report.missing == {}
    assert len(report.views["tokens"]["tokens"]) >= 505
    assert report.save(tmp_path / "report.html") <= 15_000_000


def test_an_answer_that_fills_the_context_has_its_probabilities(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, dtype="float32", max_model_len=64, threads=1) as full:
        report = explain(full, "x" * 63, full.params(max_tokens=1), raw=True)
    assert report.missing == {}
    assert len(report.views["probabilities"]["positions"]) == 64
    assert report.views["probabilities"]["what_if"] == []


@pytest.mark.parametrize("asked", [{"system": "Be brief."}, {"think": False}])
def test_what_only_a_chat_template_could_do_is_refused_without_one(llm: LLM, asked: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="no chat template"):
        explain(llm, "To be", llm.params(max_tokens=1), raw=True, **asked)
