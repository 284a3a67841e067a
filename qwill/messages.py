"""Checks what a chat is called with: messages, tools and template keywords become plain JSON values, or an error.

Errors name the place, such as messages[2].tool_calls[0].function.arguments. Knows no templates and no tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from qwill.errors import PromptError

__all__ = ["check_keywords", "check_messages", "check_tools"]

ROLES = ("system", "user", "assistant", "tool")
MAX_DEPTH = 64
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_RESERVED = {
    *("messages", "conversation", "tools", "documents", "chat_template", "tokenizer", "tokenize", "tokenizer_kwargs"),
    *("add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
}
"""Names that a template gets from us or that mean something to transformers' own function."""


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Plain copies of the messages. In each, `content` is a list of texts (to be joined) or is not there.

    Keys whose value is None are dropped, as in OpenAI's answers sent back; a missing content is empty where a message
    may lack one; a tool call's arguments are an object, also when they came as JSON text.

    Raises:
        PromptError: names the message and what is wrong with it.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError("messages must be a list", hint='[{"role": "user", "content": "Hello"}]')
    if not messages:
        raise PromptError("messages is empty", hint="give at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Plain copies of the tools' JSON schemas.

    Raises:
        PromptError: names the tool and what is wrong with it.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise PromptError("tools must be a list of JSON schemas")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise PromptError(f"tools[{i}] must be a JSON schema, this is {type(tool).__name__}")
    return [_plain(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def check_keywords(keywords: Mapping[str, Any], enable_thinking: Any) -> dict[str, Any]:
    """The keywords for the template, `enable_thinking` among them when it is given.

    Raises:
        PromptError: for a reserved name, or a value that is not a single text, number, boolean or None.
    """
    if enable_thinking is not None and not isinstance(enable_thinking, bool):
        raise PromptError(f"enable_thinking = {enable_thinking!r:.60} must be true, false or None")
    for name, value in keywords.items():
        if name in _RESERVED or name.startswith("_"):
            raise PromptError(f"{name} cannot be given to a chat template")
        if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
            raise PromptError(f"{name} must be a single value, this is {type(value).__name__}")
    plain = {name: _plain(value, name) for name, value in keywords.items()}
    return plain if enable_thinking is None else {**plain, "enable_thinking": enable_thinking}


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} must be an object with a role, this is {type(message).__name__}")
    given = {key: value for key, value in message.items() if value is not None}
    role = given.get("role")
    if role not in ROLES:
        hint = "allowed: " + ", ".join(ROLES)
        raise PromptError(f"{where}.role = {role!r:.60} is not a role", hint=hint)
    special = ("content", "tool_calls")
    plain: dict[str, Any] = _plain({key: value for key, value in given.items() if key not in special}, where)
    plain["content"] = _content(given.get("content"), role, f"{where}.content")
    if "tool_calls" in given:
        plain["tool_calls"] = _tool_calls(given["tool_calls"], role, f"{where}.tool_calls")
    reasoning = next((plain[name] for name in _REASONING_NAMES if name in plain), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise PromptError(f"{where}.reasoning_content must be text, this is {type(reasoning).__name__}")
        plain["reasoning_content"] = reasoning
    return plain


def _content(content: Any, role: str, where: str) -> list[str]:
    if content is None and role == "assistant":
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise PromptError(f"{where} must be text or a list of text parts, this is {type(content).__name__}")
    return [_text_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _text_part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        hint = '{"type": "text", "text": "…"}'
        raise PromptError(f"{where} is not a text part; only text is supported", where=f"type {kind!r:.60}", hint=hint)
    if not isinstance(part.get("text"), str):
        raise PromptError(f"{where}.text must be text, this is {type(part.get('text')).__name__}")
    return str(part["text"])


def _tool_calls(calls: Any, role: str, where: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise PromptError(f"{where}: only the assistant calls tools, this message is the {role}'s")
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
        raise PromptError(f"{where} must be a list, this is {type(calls).__name__}")
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """OpenAI's {"id", "type", "function": {"name", "arguments"}}, or the inner object alone."""
    plain = _plain(call, where)
    nested = isinstance(plain, dict) and "function" in plain
    function = plain["function"] if nested else plain
    where = f"{where}.function" if nested else where
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise PromptError(f"{where} must be an object with a name and arguments")
    function["arguments"] = _arguments(function.get("arguments"), f"{where}.arguments")
    return plain  # type: ignore[no-any-return]


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = _plain(json.loads(arguments or "{}"), where)
        except (ValueError, RecursionError) as error:
            raise PromptError(f"{where} is not JSON: {error!s:.100}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise PromptError(f"{where} must be an object, this is {type(arguments).__name__}")
    return arguments


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of a JSON-like value made of exact Python types, so that a template meets no strange object."""
    if depth > MAX_DEPTH:
        raise PromptError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__float__(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise PromptError(f"{where} has a key that is not text: {key!r:.60}")
        return {str.__str__(key): _plain(item, f"{where}.{key:.60}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise PromptError(f"{where} is not a JSON value: {value!r:.60}")
