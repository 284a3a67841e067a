"""The commands inside a chat, each on a conversation with the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwill.cli.conversation import Conversation
from qwill.cli.slash import COMMANDS, Leave, as_message, completions, run_slash_command
from qwill.cli.talk import Talk
from qwill.errors import FormatError, QwillError, SettingError, UsageError


class Silence:
    def thinking(self, text: str, tokens: int) -> None:
        pass

    def content(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Chat:
    """A talk whose commands are typed with a call; gives what was told."""

    def __init__(self, stand_in: Any, folder: Path) -> None:
        self.told: list[str] = []
        self.talk = Talk(
            stand_in,
            Conversation(),
            new_view=Silence,
            tell=self.told.append,
            count_prompt=len,
            sessions=folder,
        )

    def __call__(self, line: str) -> str:
        self.told.clear()
        run_slash_command(self.talk, line)
        return "\n".join(self.told)


@pytest.fixture
def chat(stand_in: Any, tmp_path: Path) -> Chat:
    return Chat(stand_in, tmp_path / "sessions")


@pytest.mark.parametrize(
    ("line", "message"), [("hi", "hi"), ("//etc is a folder", "/etc is a folder"), ("/new", None), ("", "")]
)
def test_a_slash_begins_a_command_and_two_send_one(line: str, message: str | None) -> None:
    assert as_message(line) == message


def test_help_lists_every_command_with_its_other_names(chat: Chat) -> None:
    text = chat("/help")
    assert all(f"/{name}" in text for command in COMMANDS for name in (command.name, *command.aliases))
    assert chat("/?") == text


@pytest.mark.parametrize(
    ("line", "near"),
    [("/hepl", "/help"), ("/sytem x", "/system"), ("/rgen", "/regen"), ("/quti", "/quit"), ("/etc/passwd", "//")],
)
def test_an_unknown_command_names_the_nearest(chat: Chat, line: str, near: str) -> None:
    with pytest.raises(UsageError, match="unknown command") as refused:
        chat(line)
    assert near in refused.value.hint


@pytest.mark.parametrize("line", ["/new x", "/exit now", "/undo 2", "/think maybe"])
def test_what_a_command_does_not_take_is_refused(chat: Chat, line: str) -> None:
    with pytest.raises(UsageError):
        chat(line)


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/q"])
def test_leaving_has_four_names(chat: Chat, line: str) -> None:
    with pytest.raises(Leave):
        chat(line)


@pytest.mark.parametrize("line", ["/new", "/clear", "/reset"])
def test_a_new_conversation_keeps_the_settings(chat: Chat, line: str) -> None:
    chat("/system be kind")
    chat("/set seed 7")
    chat.talk.say("hello")
    chat(line)
    assert chat.talk.conversation.messages() == [{"role": "system", "content": "be kind"}]
    assert chat.talk.params.seed == 7


def test_the_system_prompt_is_shown_and_changed(chat: Chat) -> None:
    assert "none" in chat("/system")
    chat("/system you are  a poet")
    assert chat.talk.conversation.system == "you are  a poet"
    assert "poet" in chat("/system")


@pytest.mark.parametrize(("word", "value"), [("on", True), ("off", False), ("auto", None)])
def test_thinking_is_switched(chat: Chat, word: str, value: bool | None) -> None:
    assert word in chat(f"/think {word}")
    chat.talk.say("hello")
    assert chat.talk.llm.calls[-1]["enable_thinking"] is value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/set temperature 0.2", "temperature", 0.2),
        ("/set temperature=0.2", "temperature", 0.2),
        ("/set top-k 5", "top_k", 5),
        ("/set seed none", "seed", None),
        ("/set stop THE END", "stop", ("THE END",)),
        ("/set stop", "stop", ()),
        ("/set stop_token_ids 1, 2", "stop_token_ids", (1, 2)),
        ("/set ignore_eos on", "ignore_eos", True),
        ("/set max_tokens 12", "max_tokens", 12),
    ],
)
def test_a_sampling_setting_is_changed(chat: Chat, line: str, name: str, value: Any) -> None:
    chat(line)
    assert getattr(chat.talk.params, name) == value
    chat.talk.say("hello")
    assert getattr(chat.talk.llm.calls[-1]["params"], name) == value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "/set temperature nan",
            "/set temperature -1",
            "/set temperature",
            "/set top_k 1.5",
            "/set ignore_eos perhaps",
        ),
        *("/set n 2", "/set logit_bias {}", "/set temprature 1", "/set seed x"),
    ],
)
def test_a_bad_setting_is_refused_and_changes_nothing(chat: Chat, line: str) -> None:
    before = chat.talk.params
    with pytest.raises((SettingError, UsageError)):
        chat(line)
    assert chat.talk.params == before


def test_a_mistyped_setting_names_the_nearest(chat: Chat) -> None:
    with pytest.raises(SettingError) as refused:
        chat("/set temprature 1")
    assert "temperature" in refused.value.hint


def test_show_tells_model_context_and_settings(chat: Chat) -> None:
    text = chat("/show")
    assert all(part in text for part in ("stand-in", "1000 tokens", "temperature = 0.5", "turns     0"))
    assert "no thinking" in chat("/show thinking")
    chat.talk.say("think")
    assert chat("/show thinking") == "secret thoughts"


def test_the_last_question_is_answered_again_or_taken_back(chat: Chat) -> None:
    for line in ("/regen", "/retry", "/undo"):
        with pytest.raises(UsageError):
            chat(line)
    chat.talk.say("hello")
    chat("/regen")
    assert len(chat.talk.conversation.turns) == 2
    assert "hello" in chat("/undo")
    assert chat.talk.conversation.turns == []


def test_a_conversation_is_saved_and_loaded_with_its_system_prompt(chat: Chat) -> None:
    chat("/system be kind")
    chat.talk.say("hello")
    before = chat.talk.conversation.messages()
    assert "first.jsonl" in chat("/save first")
    assert ".jsonl" in chat("/save")
    chat("/new")
    chat("/system other")
    assert "2 turns" in chat("/load first")
    assert chat.talk.conversation.messages() == before
    assert "first" in chat("/load")
    with pytest.raises(QwillError):
        chat("/load nothing")


def test_a_damaged_session_is_moved_aside_and_the_conversation_stays(chat: Chat) -> None:
    chat.talk.say("hello")
    before = chat.talk.conversation.messages()
    chat("/save x")
    (chat.talk.sessions / "x.jsonl").write_text("garbage")
    with pytest.raises(FormatError):
        chat("/load x")
    assert (chat.talk.sessions / "x.jsonl.bad").exists()
    assert chat.talk.conversation.messages() == before


def test_statistics_are_switched_and_shown(chat: Chat) -> None:
    assert "on" in chat("/stats")
    chat.talk.say("hello")
    assert "tok/s" in chat("/stats off")
    assert chat.talk.stats is False


def test_tab_completes_commands_settings_and_conversations(chat: Chat) -> None:
    assert completions(chat.talk, "/s") == ["/system", "/set", "/show", "/save", "/stats"]
    assert completions(chat.talk, "/set top") == ["/set top_k", "/set top_p"]
    assert completions(chat.talk, "/think o") == ["/think on", "/think off"]
    assert completions(chat.talk, "/nothing x") == []
    chat("/save first")
    assert completions(chat.talk, "/load f") == ["/load first"]
