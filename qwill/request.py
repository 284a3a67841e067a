"""Request: the state of one answer while it is generated, in token ids. Torch-free; knows no text and no tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qwill.errors import ContextLengthError, PromptError
from qwill.sampling_params import SamplingParams
from qwill.settings import shown

__all__ = ["Request", "as_conversations", "as_prompts", "as_token_ids", "check_prompt", "clamp_max_tokens"]


@dataclass(eq=False)
class Request:
    """One answer to one prompt.

    `num_computed_tokens` counts the tokens, from the first, whose keys and values are in the cache;
    `block_table` lists the blocks that hold them, in order. `index` numbers the answers of one prompt.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    index: int = 0
    use_cache: bool = True
    priority: int = 0
    """Lower is served first; equals in order of arrival."""
    deadline: float | None = None
    """When its time is up, in seconds of `time.monotonic()`."""
    cache_salt: str = ""
    """Cached blocks are shared only with requests of the same salt."""
    thinking: Literal["no", "may", "open"] = "no"
    """Where a chat's answer begins: it has no thinking, it may open one, or the prompt ends inside one."""
    grammar: Any = None
    """What the answer must follow, compiled (`qwill.grammar.Grammar`); None: anything."""
    output_token_ids: list[int] = field(default_factory=list)
    draft_token_ids: list[int] = field(default_factory=list)
    """Guesses at the next tokens, for the next step to verify."""
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    """How many of the prompt's tokens came from the prefix cache when it was first scheduled."""
    drafted_tokens: int = 0
    """Guesses that were verified so far."""
    accepted_tokens: int = 0
    """Guesses that were right."""

    @property
    def num_tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens that are not computed yet: the prompt's rest at first, then one per step."""
        return self.num_tokens - self.num_computed_tokens

    def tokens(self, start: int, count: int) -> list[int]:
        """`count` known token ids from position `start` of prompt and answer."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.output_token_ids[start - prompt : start - prompt + count]
        return (self.prompt_token_ids[start : start + count] + self.output_token_ids)[:count]


def check_prompt(token_ids: Sequence[int], *, vocab_size: int, max_model_len: int) -> None:
    """Refuse a prompt that cannot be computed.

    Raises:
        PromptError: empty, or an id outside the vocabulary.
        ContextLengthError: no room for even one new token.
    """
    if not token_ids:
        raise PromptError("the prompt is empty", hint="give at least one token")
    for position, token_id in enumerate(token_ids):
        is_number = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_number or not 0 <= token_id < vocab_size:
            raise PromptError(
                f"token id {shown(token_id)} is outside the vocabulary",
                where=f"prompt position {position}",
                hint=f"allowed: 0 … {vocab_size - 1}",
            )
    if len(token_ids) >= max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(token_ids)} tokens; the context holds {max_model_len}, the answer included",
            hint="shorten the prompt or raise max_model_len",
        )


def clamp_max_tokens(params: SamplingParams, prompt_tokens: int, max_model_len: int) -> int:
    """Most new tokens of an answer: what was asked for, at most what the context leaves."""
    room = max_model_len - prompt_tokens
    return room if params.max_tokens is None else min(params.max_tokens, room)


def as_prompts(prompts: Any) -> list[Any]:
    """One prompt, or several, as a list of prompts. A prompt is text, or any sequence or array of token ids.

    Raises:
        PromptError: neither of them.
    """
    if isinstance(prompts, str):
        return [prompts]
    several = list(_iterable(prompts))
    return several if not several or _is_prompt(several[0]) else [several]


def _is_prompt(item: Any) -> bool:
    """Whether an element is a prompt itself, and no number: text, or a sequence or array with a length."""
    return isinstance(item, str) or (hasattr(item, "__iter__") and getattr(item, "ndim", 1) > 0)


def as_token_ids(prompt: Any) -> list[Any]:
    """A prompt's token ids as plain integers, whatever array they come in; `check_prompt` judges the rest.

    Raises:
        PromptError: not a sequence.
    """
    return [_as_integer(item) for item in _iterable(prompt)]


def _as_integer(item: Any) -> Any:
    """An element of any array as a plain integer; what is none, as arrays of fractions, stays what it is."""
    if type(item) is int:
        return item
    try:
        return item if isinstance(item, bool) else operator.index(item)
    except TypeError:
        return item


def as_conversations(messages: Any) -> list[Any]:
    """One conversation, or several, as a list of conversations; what a message must be is checked when it is rendered.

    Raises:
        PromptError: not a list of messages.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not hasattr(messages, "__iter__"):
        raise PromptError(
            f"messages is a {type(messages).__name__}, not a list of messages",
            hint='[{"role": "user", "content": "…"}]',
        )
    several = list(messages)
    return [several] if not several or isinstance(several[0], Mapping) else several


def _iterable(value: Any) -> Any:
    unordered = isinstance(value, (bytes, bytearray, Mapping, set, frozenset))
    if unordered or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:  # an array's single number
        raise PromptError(
            f"a prompt is text or a list of token ids, not {type(value).__name__}",
            hint="give a string, a list of token ids, or a list of such prompts",
        )
    return value
