"""The state of a conversation: turns in and out, and what is sent when the context is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qwill.cli.conversation import Conversation


def talked(turns: int, system: str | None = None) -> Conversation:
    conversation = Conversation(system)
    for number in range(turns):
        conversation.ask(f"q{number}")
        conversation.answer(f"a{number}")
    return conversation


def test_messages_are_the_system_prompt_and_the_turns() -> None:
    conversation = talked(1, "be kind")
    conversation.ask("q1")
    assert [m["role"] for m in conversation.messages()] == ["system", "user", "assistant", "user"]
    assert [m["role"] for m in talked(1, "").messages()] == ["user", "assistant"]


def test_taking_back_removes_question_and_answer() -> None:
    conversation = talked(2)
    assert conversation.take_back() == "q1"
    assert [turn["content"] for turn in conversation.turns] == ["q0", "a0"]
    conversation.ask("q2")
    assert conversation.take_back() == "q2"
    assert conversation.take_back() == "q0"
    assert conversation.take_back() is None


@given(st.integers(0, 12), st.integers(0, 40))
def test_a_full_context_drops_whole_oldest_turns_and_never_the_last_question(turns: int, limit: int) -> None:
    conversation = talked(turns, "system")
    conversation.ask("last")
    conversation.drop_oldest(lambda messages: len(messages) <= limit)
    sent = conversation.messages()
    assert sent[0]["role"] == "system"
    assert sent[1]["role"] == "user"
    assert sent[-1]["content"] == "last"
    assert len(conversation.turns) == 2 * turns + 1
    if limit >= 2:
        assert limit - 1 <= len(sent) <= limit or len(sent) == 2 * turns + 2


def test_clearing_keeps_the_settings() -> None:
    conversation = talked(3, "system")
    conversation.overrides["seed"] = 1
    conversation.first = 2
    conversation.clear()
    assert (conversation.turns, conversation.first) == ([], 0)
    assert (conversation.system, conversation.overrides) == ("system", {"seed": 1})
