"""A conversation becomes a prompt: the model's chat template, rendered so that no user can write a control token.

A template pastes the users' texts between control tokens, and a tokenizer that looks for control tokens cannot tell
the two apart: `<|im_end|>` in a message would end it. So, before rendering, a private-use character that occurs
nowhere in the conversation is put behind every first character of a control token ("<" becomes "<N") in every text
that is not the template's own. Then what still spells a control token was written by the template, even where two
texts meet; the prompt is cut there, the marker removed, and the rest is encoded as plain text.

Only the assistant's own `<think>` and `</think>` are let through, because templates look for them to leave old
reasoning out. `raw_special=True` switches all this off and does as Hugging Face does.

What the model answers is split by `OutputParser`, of chat_output.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwill.chat_output import OutputEvent, OutputParser
from qwill.errors import PromptError, TemplateError
from qwill.messages import check_keywords, check_messages, check_tools
from qwill.templates import compile_template
from qwill.thinking import ThinkingTokens
from qwill.tokenizer import Tokenizer

__all__ = ["OutputEvent", "OutputParser", "RenderedPrompt", "render_chat", "thinking_tokens"]

_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation as the model sees it. `starts_in_thinking`: it ends with an open <think>."""

    text: str
    token_ids: list[int]
    starts_in_thinking: bool


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    enable_thinking: bool | None = None,
    add_generation_prompt: bool = True,
    raw_special: bool = False,
    most_tokens: int | None = None,
    **template_kwargs: str | int | float | bool | None,
) -> RenderedPrompt:
    """Render messages with the model's chat template; token for token what transformers' `apply_chat_template` gives.

    `messages` are OpenAI's: role, content (text, or a list of text parts, which are joined), tool_calls (arguments as
    an object or as its JSON text), reasoning_content. `tools` are JSON schemas. `enable_thinking=None` leaves the
    choice to the template. Other keywords go to the template and must be single values.
    A prompt of more than `most_tokens` is refused as soon as that is known.

    Raises:
        ContextLengthError: more than `most_tokens`.
        PromptError: a message, tool or keyword is malformed; the text names it.
        TemplateError: the model has no chat template, or the template fails or refuses the conversation.
    """
    schemas = check_tools(tools)
    source = _template_of(tokenizer, schemas)
    conversation = check_messages(messages)
    keywords = check_keywords(template_kwargs, enable_thinking)
    marker = "" if raw_special else _unused_character([source, conversation, schemas, keywords, tokenizer.named_tokens])
    mark = _Marker(marker, tokenizer)
    text = compile_template(source).render(
        {
            "messages": [mark.message(message) for message in conversation],
            "tools": mark.value(schemas),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **tokenizer.named_tokens,
            **mark.value(keywords),
        },
        marker=marker,
    )
    parts = [part if isinstance(part, int) else mark.remove(part) for part in tokenizer.split(text)]
    return RenderedPrompt(
        mark.remove(text), tokenizer.encode_parts(parts, most=most_tokens), text.rstrip().endswith("<think>")
    )


def _template_of(tokenizer: Tokenizer, tools: Any) -> str:
    templates = tokenizer.chat_templates
    source = templates.get("tool_use") if tools else None
    source = source if source is not None else templates.get("default")
    if source is None:
        raise TemplateError(
            "this model has no chat template, so it is probably a base model",
            hint="give it plain text to go on with instead of messages",
        )
    return source


class _Marker:
    """Puts the marker behind every first character of an added token, and takes it out again.

    Added tokens that begin with a letter, a digit or a space are words and runs of spaces, not control tokens.
    """

    def __init__(self, marker: str, tokenizer: Tokenizer) -> None:
        self._marker = marker
        first = {token[0] for token in tokenizer.special_tokens if not (token[0].isalnum() or token[0].isspace())}
        self._first = re.compile("|".join(map(re.escape, sorted(first))) or r"(?!)")
        self._first_but_thinking = re.compile(f"(?!</?think>)(?:{self._first.pattern})")

    def text(self, text: str, *, thinking: bool = False) -> str:
        """The text with markers; with `thinking`, none in <think> and </think>."""
        pattern = self._first_but_thinking if thinking else self._first
        return pattern.sub(lambda match: match[0] + self._marker, text) if self._marker else text

    def value(self, value: Any) -> Any:
        """A copy of a JSON-like value with markers in every text and key."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list) else value

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A copy of a message with markers; its content's parts are joined to one text."""
        marked: dict[str, Any] = self.value({key: value for key, value in message.items() if key != "content"})
        thinking = message["role"] == "assistant"
        if "content" in message:
            marked["content"] = "".join(self.text(part, thinking=thinking) for part in message["content"])
        return marked

    def remove(self, text: str) -> str:
        """The text without markers."""
        return text.replace(self._marker, "") if self._marker else text


def _unused_character(given: Any) -> str:
    used: set[str] = set()
    for text in _texts(given):
        used.update(text)
    for code in _PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise PromptError("the conversation uses every private-use character", hint="use raw_special")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def thinking_tokens(tokenizer: Tokenizer) -> ThinkingTokens | None:
    """The tokens with which the model begins and ends its thinking; None where it has none."""
    opens, closes = (tokenizer.special_tokens.get(tag) for tag in ("<think>", "</think>"))
    return None if opens is None or closes is None else ThinkingTokens(opens, closes, _Blank(tokenizer))


class _Blank:
    """The tokens that are nothing but white space. Asked, not listed: there are 150,000 tokens to look at."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __contains__(self, token_id: object) -> bool:
        return isinstance(token_id, int) and self._tokenizer.token_bytes(token_id).isspace()
