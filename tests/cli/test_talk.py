"""A conversation with an engine: what is kept, what is told, what happens when the engine fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwill.cli import talk as talk_module
from qwill.cli.conversation import Conversation
from qwill.cli.talk import Talk
from qwill.errors import ModelError


class Silence:
    def thinking(self, text: str, tokens: int) -> None:
        pass

    def content(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def talk(stand_in: Any, tmp_path: Path, told: list[str]) -> Talk:
    return Talk(
        stand_in,
        Conversation("be kind", think=False, overrides={"temperature": 0.1}),
        new_view=Silence,
        tell=told.append,
        count_prompt=lambda messages: sum(len(m["content"]) for m in messages),
        sessions=tmp_path,
    )


def contents(talk: Talk) -> list[str]:
    return [turn["content"] for turn in talk.conversation.turns]


def test_questions_and_answers_are_kept_and_sent(talk: Talk, stand_in: Any) -> None:
    talk.say("hello")
    talk.say("think")
    assert contents(talk) == ["hello", "2 messages, the last: hello ", "think", "clear words"]
    call = stand_in.calls[-1]
    assert [m["content"] for m in call["messages"]] == ["be kind", *contents(talk)[:3]]
    assert call["params"].temperature == 0.1
    assert call["enable_thinking"] is False


def test_thinking_is_not_sent_again(talk: Talk, stand_in: Any) -> None:
    talk.say("think")
    talk.say("hello")
    assert "secret" not in str(stand_in.calls[-1]["messages"])


def test_when_the_engine_fails_the_conversation_is_as_it_was(talk: Talk) -> None:
    talk.say("hello")
    before = contents(talk)
    with pytest.raises(ModelError):
        talk.say("fail")
    assert contents(talk) == before


def interrupt(talk: Talk, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    real = talk_module.play

    def cut(events: Any, view: Any, **options: Any) -> Any:
        def until() -> Any:
            for count, event in enumerate(events):
                if count == after:
                    raise KeyboardInterrupt
                yield event

        return real(until(), view, **options)

    monkeypatch.setattr(talk_module, "play", cut)


def test_an_interrupted_answer_is_kept_as_far_as_it_came(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(talk, monkeypatch, after=1)
    assert talk.say("hello").interrupted
    assert contents(talk) == ["hello", "2 "]


def test_a_question_without_any_answer_is_not_kept(
    talk: Talk, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.say("hello")
    before = contents(talk)
    interrupt(talk, monkeypatch, after=0)
    talk.say("more")
    assert contents(talk) == before
    assert "not kept" in told[-1]
    talk.say_again()
    assert contents(talk) == before


def test_answering_again_replaces_the_answer(talk: Talk) -> None:
    assert talk.say_again() is None
    talk.say("hello")
    talk.say("x")
    assert talk.say_again() is not None
    assert contents(talk)[::2] == ["hello", "x"]
    assert len(contents(talk)) == 4


def test_the_oldest_turns_are_dropped_with_a_notice_when_the_context_is_full(
    talk: Talk, told: list[str], stand_in: Any
) -> None:
    stand_in.max_model_len = 160
    for number in range(8):
        talk.say(f"question {number}")
    assert any("no longer sent" in text for text in told)
    sent = stand_in.calls[-1]["messages"]
    assert sent[0]["content"] == "be kind"
    assert sent[-1]["content"] == "question 7"
    assert sum(len(m["content"]) for m in sent) <= 160
    assert len(contents(talk)) == 16


@pytest.mark.parametrize(
    ("limit", "finish_reason", "said"),
    [
        (8, "stop", ["context 87 % full: 7 of 8 tokens"]),
        (7, "length", ["the answer was cut: the context of 7 tokens is full (/new starts afresh)"]),
        (9, "stop", []),
    ],
)
def test_a_nearly_full_context_is_told(
    talk: Talk, told: list[str], stand_in: Any, limit: int, finish_reason: str, said: list[str]
) -> None:
    stand_in.max_model_len, stand_in.finish_reason = limit, finish_reason
    talk.say("hello")  # 2 prompt tokens, 5 new ones
    assert told == said


def test_statistics_are_told_when_wanted(talk: Talk, told: list[str]) -> None:
    talk.say("hello")
    assert told == []
    talk.stats = True
    talk.say("hello")
    assert "tok/s" in told[0]
