"""The commands inside a chat: /help, /new, /set … Each is one small function on a `Talk`. Knows no keyboard.

A line that begins with // sends a text that begins with one slash.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from qwill.cli.reply import stats_line
from qwill.cli.sessions import load_session, save_session, session_names
from qwill.cli.talk import Talk
from qwill.errors import SettingError, UsageError
from qwill.sampling_params import SamplingParams
from qwill.settings import parse_count, with_overrides

__all__ = ["COMMANDS", "Leave", "as_message", "completions", "run_slash_command"]

NOT_IN_A_CHAT = ("n", "logit_bias", "structured_outputs")
"""Settings that make no sense for every answer of a chat, or that no single line can hold."""


class Leave(Exception):  # noqa: N818 (not an error)
    """The user wants to end the chat."""


@dataclass(frozen=True)
class SlashCommand:
    """One command: what it takes, what it does, its other names. `run` gets the talk and, if it takes one, the text."""

    name: str
    argument: str
    help: str
    run: Callable[..., None]
    aliases: tuple[str, ...] = ()


def as_message(line: str) -> str | None:
    """The text to send to the model, or None when the line is a command."""
    if line.startswith("//"):
        return line[1:]
    return None if line.startswith("/") else line


def run_slash_command(talk: Talk, line: str) -> None:
    """Carry out one line that begins with a slash.

    Raises:
        UsageError: there is no such command; the nearest one is in the hint.
        Leave: the user wants to go.
    """
    word, _, argument = line[1:].strip().partition(" ")
    names = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
    if word not in names:
        near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise UsageError(f"unknown command /{word[:50]}", hint=f"{hint} (a line that begins with // sends a slash)")
    command, argument = names[word], argument.strip()
    if command.argument:
        command.run(talk, argument)
    elif argument:
        raise UsageError(f"/{command.name} takes nothing after it")
    else:
        command.run(talk)


def completions(talk: Talk, text: str) -> list[str]:
    """What may follow the text typed so far: commands, settings, conversations."""
    word, space, argument = text.partition(" ")
    if not space:
        return [f"/{command.name}" for command in COMMANDS if f"/{command.name}".startswith(word)]
    known = {"/set": _settable(), "/load": session_names(talk.sessions), "/think": ["on", "off", "auto"]}
    return [f"{word} {item}" for item in known.get(word, []) if item.startswith(argument)]


def _help(talk: Talk) -> None:
    rows = [(f"/{c.name} {c.argument}".rstrip(), c.help, c.aliases) for c in COMMANDS]
    lines = [f"  {left:<20}{text}{_also(aliases)}" for left, text, aliases in rows]
    keys = [
        "  Enter sends; Ctrl+J or Alt+Enter begins a new line; Tab completes commands",
        '  """ begins and ends a text of several lines; // at the start sends a slash',
        "  Ctrl-C stops an answer and keeps it; Ctrl-D leaves",
    ]
    talk.tell("\n".join([*lines, *keys]))


def _also(aliases: tuple[str, ...]) -> str:
    return f" (also {', '.join('/' + name for name in aliases)})" if aliases else ""


def _new(talk: Talk) -> None:
    talk.conversation.clear()
    talk.tell("a new conversation; the system prompt and the settings stay")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.conversation.system = argument
    talk.tell(f"system prompt: {talk.conversation.system or 'none, or the one of the model template'}")


def _think(talk: Talk, argument: str) -> None:
    words = {"on": True, "off": False, "auto": None}
    if argument and argument not in words:
        raise UsageError(f"/think {argument[:50]}", hint="/think on, /think off or /think auto")
    if argument:
        talk.conversation.think = words[argument]
    talk.tell(f"think: {_think_word(talk)}")


def _think_word(talk: Talk) -> str:
    return {True: "on", False: "off", None: "auto, as the model's template does"}[talk.conversation.think]


def _settable() -> list[str]:
    return [field.name for field in fields(SamplingParams) if field.name not in NOT_IN_A_CHAT]


def _set(talk: Talk, argument: str) -> None:
    key, text = re.fullmatch(r"([\w-]*)\s*=?\s*(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    key = key.replace("-", "_")
    if not key:
        talk.tell(_sampling(talk.params))
        return
    if key in NOT_IN_A_CHAT:
        raise UsageError(f"{key} cannot be set in a chat")
    value = _value(key, text.strip())
    with_overrides(talk.params, {key: value})  # refuses an unknown name and a value out of range
    talk.conversation.overrides[key] = value
    talk.tell(f"{key} = {value}")


def _value(key: str, text: str) -> Any:
    """The text as the setting's type; "none" takes away what may be absent."""
    kind = str(get_type_hints(SamplingParams).get(key, str))
    if text.lower() in ("", "none") and "None" in kind:
        return None
    try:
        if "int" in kind and "tuple" not in kind:
            return parse_count(text) if text[-1:].lower() in ("k", "m", "g") else int(text)
        if "float" in kind:
            return float(text)
        if "tuple[int" in kind:
            return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise SettingError(
            f"{key} = {text[:100]!r} is not a number", hint="for example /set temperature 0.7"
        ) from error
    if "bool" in kind:
        if text.lower() not in ("on", "off", "true", "false"):
            raise SettingError(f"{key} = {text[:100]!r} is neither on nor off", hint=f"/set {key} on")
        return text.lower() in ("on", "true")
    return (text,) if "tuple" in kind and text else () if "tuple" in kind else text


def _sampling(params: SamplingParams) -> str:
    return "\n".join(f"  {name} = {getattr(params, name)!r}" for name in _settable())


def _show(talk: Talk, argument: str) -> None:
    if argument == "thinking":
        talk.tell((talk.last and talk.last.thinking.strip()) or "the last answer has no thinking")
        return
    llm, conversation = talk.llm, talk.conversation
    dropped = f", of which the first {conversation.first} are no longer sent" if conversation.first else ""
    about = [
        f"model     {llm.name} ({llm.dtype} on {llm.device}, {llm.threads} threads)",
        f"context   {llm.max_model_len} tokens",
        f"system    {conversation.system or '-'}",
        f"think     {_think_word(talk)}",
        f"turns     {len(conversation.turns)}{dropped}",
        f"sampling\n{_sampling(talk.params)}",
    ]
    talk.tell("\n".join(about))


def _regen(talk: Talk) -> None:
    if talk.say_again() is None:
        raise UsageError("there is nothing to answer again")


def _undo(talk: Talk) -> None:
    question = talk.conversation.take_back()
    if question is None:
        raise UsageError("there is nothing to take back")
    talk.tell(f"taken back: {question if len(question) <= 60 else question[:60] + '…'}")


def _save(talk: Talk, argument: str) -> None:
    conversation = talk.conversation
    system = [{"role": "system", "content": conversation.system}] if conversation.system else []
    name = argument or time.strftime("chat-%Y%m%d-%H%M%S")
    path = save_session(talk.sessions, name, system + conversation.turns)
    talk.tell(f"saved: {path}")


def _load(talk: Talk, argument: str) -> None:
    if not argument:
        talk.tell("saved: " + (", ".join(session_names(talk.sessions)) or "nothing yet"))
        return
    messages = load_session(talk.sessions, argument)
    conversation = talk.conversation
    conversation.clear()
    conversation.system = next((m["content"] for m in messages if m["role"] == "system"), None)
    conversation.turns = [m for m in messages if m["role"] != "system"]
    talk.tell(f"loaded {argument}: {len(conversation.turns)} turns")


def _stats(talk: Talk, argument: str) -> None:
    talk.stats = not talk.stats if argument == "" else argument == "on"
    if talk.last is not None:
        talk.tell(stats_line(talk.last))
    talk.tell(f"statistics after each answer: {'on' if talk.stats else 'off'}")


def _exit(_talk: Talk) -> None:
    raise Leave


COMMANDS = (
    SlashCommand("help", "", "this list", _help, ("?",)),
    SlashCommand("new", "", "forget the conversation", _new, ("clear", "reset")),
    SlashCommand("system", "[text]", "show or change the system prompt", _system),
    SlashCommand("think", "on|off|auto", "whether the model thinks first", _think),
    SlashCommand("set", "[name value]", "show or change a sampling setting", _set),
    SlashCommand("show", "[thinking]", "show the model and the settings, or the last thinking", _show),
    SlashCommand("regen", "", "answer the last question again", _regen, ("retry",)),
    SlashCommand("undo", "", "take back the last question and its answer", _undo),
    SlashCommand("save", "[name]", "keep the conversation in a file", _save),
    SlashCommand("load", "[name]", "go on with a kept conversation", _load),
    SlashCommand("stats", "[on|off]", "speed of the last answer; on and off for each answer", _stats),
    SlashCommand("exit", "", "leave", _exit, ("quit", "bye", "q")),
)
