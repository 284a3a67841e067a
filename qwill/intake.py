"""Intake: what a user asks for, checked, as jobs ready for the engine. Knows tokenizer and template, but no engine.

Everything that can be refused is refused here, before anything is computed.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qwill.answer import Answer
from qwill.chat import OutputParser, render_chat
from qwill.errors import QwillError, SettingError
from qwill.grammar import Grammars
from qwill.job import Job
from qwill.outputs import RequestOutput
from qwill.request import Request, as_conversations, as_prompts, as_token_ids, check_prompt, clamp_max_tokens
from qwill.sampling_params import SamplingParams
from qwill.settings import check_settings, setting, shown, with_overrides
from qwill.tokenizer import Tokenizer

__all__ = ["ChatOptions", "Intake", "Message", "Params", "Prompt", "RequestOptions"]

logger = logging.getLogger("qwill")

Message = Mapping[str, Any]
Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one for each; None takes the model's defaults."""

Thinking = Literal["no", "may", "open"]
"""Where a chat's answer begins: see `Request.thinking`."""

INT31 = 2**31 - 1


@dataclass(frozen=True)
class RequestOptions:
    """How requests are handled, besides how they are sampled; every front end takes these as keywords."""

    use_cache: bool = setting(
        True, "keep what was computed; false computes every token anew at each step: slow, for teaching and comparison"
    )
    raw_special: bool = setting(False, "text of the prompt may become control tokens")
    priority: int = setting(0, "lower is served first", low=-INT31, high=INT31)
    timeout: float | None = setting(
        None,
        "time for the answer, from the call on; what is unfinished then ends with DeadlineError",
        unit="s",
        low=0.0,
    )
    cache_salt: str = setting("", "cached prompts are shared only with requests of the same salt")
    request_id: str | Sequence[str] | None = setting(
        None, "name to `abort` by; a list has one for each prompt. By default requests are numbered"
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class ChatOptions(RequestOptions):
    """How conversations are handled."""

    tools: Sequence[Mapping[str, Any]] | None = setting(None, "what the model may call, as JSON schemas")
    enable_thinking: bool | None = setting(None, "whether the model thinks first; by default as its template says")


class Intake:
    """Makes jobs for one model.

    `vocab_size` counts the model's ids, `max_model_len` the tokens of prompt and answer; `default_params` are for
    those who give none; `grammars` compiles what answers must look like.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        grammars: Grammars,
        *,
        vocab_size: int,
        max_model_len: int,
        default_params: SamplingParams,
    ) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._default_params = default_params
        self._numbers = itertools.count()
        self._warned = False

    def prompts(self, prompts: Prompt | Sequence[Prompt], params: Params, options: Mapping[str, Any]) -> list[Job]:
        """A job for one prompt, or for each of several; `options` are fields of `RequestOptions`.

        Raises:
            PromptError: a prompt is empty or too long, or holds ids outside the vocabulary.
            SettingError: an option or the parameters are unusable. With several, errors name the one they are about.
        """
        how = with_overrides(RequestOptions(), dict(options))
        return self._each(as_prompts(prompts), params, how, self._plain)

    def conversations(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params,
        options: Mapping[str, Any],
    ) -> list[Job]:
        """A job for one conversation, or for each of several; `options` are fields of `ChatOptions`.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages. Others: see `prompts`.
        """
        how = with_overrides(ChatOptions(), dict(options))
        return self._each(as_conversations(messages), params, how, self._chat)

    def _each(
        self, asked: list[Any], params: Params, how: RequestOptions, make: Callable[[Any, _Handling], Job]
    ) -> list[Job]:
        start, deadline = time.perf_counter(), None if how.timeout is None else time.monotonic() + how.timeout
        several = _each_params(params, self._default_params, len(asked))
        names = self._names(how.request_id, len(asked))
        jobs = []
        for position, (item, own, name) in enumerate(zip(asked, several, names, strict=True)):
            try:
                jobs.append(make(item, _Handling(name, own, how, deadline, start)))
            except QwillError as error:
                if len(asked) > 1:
                    error.where = f"prompt {position}" + (f", {error.where}" if error.where else "")
                raise
        return jobs

    def _names(self, given: Any, count: int) -> Iterable[str]:
        if given is None:
            return (str(number) for number in itertools.islice(self._numbers, count))
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise SettingError(f"request_id = {shown(given)}: is not text", hint="a string, or a list of strings")
        if len(names) != count or len(set(names)) != count:
            raise SettingError(
                f"request_id has {len(set(names))} different names for {count} prompts", hint="give each prompt its own"
            )
        return names

    def _plain(self, prompt: Any, handling: _Handling) -> Job:
        text = prompt if isinstance(prompt, str) else None
        token_ids = as_token_ids(prompt) if text is None else self._encode(text, handling.options.raw_special)
        return self._job(text, token_ids, handling)

    def _encode(self, text: str, raw_special: bool) -> list[int]:
        ids = self._tokenizer.encode(text, parse_special=raw_special, most=self._max_model_len)
        if self._tokenizer.add_bos and self._tokenizer.bos_token_id is not None:
            ids.insert(0, self._tokenizer.bos_token_id)
        return ids

    def _chat(self, messages: Any, handling: _Handling) -> Job:
        how = handling.options
        assert isinstance(how, ChatOptions)
        prompt = render_chat(
            self._tokenizer,
            messages,
            tools=how.tools,
            enable_thinking=how.enable_thinking,
            raw_special=how.raw_special,
            most_tokens=self._max_model_len,
        )
        may_think = how.enable_thinking is not False and "enable_thinking" in (self._tokenizer.chat_template or "")
        thinking: Thinking = "open" if prompt.starts_in_thinking else "may" if may_think else "no"
        if handling.params.greedy and thinking != "no" and not self._warned:
            self._warned = True
            logger.warning("greedy decoding while thinking tends to loop; the model's own sampling is recommended")
        return self._job(prompt.text, prompt.token_ids, handling, thinking)

    def _job(
        self,
        text: str | None,
        token_ids: list[int],
        handling: _Handling,
        thinking: Thinking | None = None,
    ) -> Job:
        """A job for a prompt. `thinking` is None for plain text, else where a chat's answer begins."""
        check_prompt(token_ids, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        params, how = handling.params, handling.options
        wanted = params.structured_outputs
        grammar = self._grammars.compile(wanted) if wanted is not None else None
        job = Job(RequestOutput(handling.request_id, text, token_ids, []), handling.start, self._tokenizer)
        for index in range(params.n):
            request = Request(
                handling.request_id,
                token_ids,
                params,
                max_tokens=clamp_max_tokens(params, len(token_ids), self._max_model_len),
                index=index,
                use_cache=how.use_cache,
                priority=how.priority,
                deadline=handling.deadline,
                cache_salt=how.cache_salt,
                thinking=thinking or "no",
                grammar=grammar,
            )
            parser = None if thinking is None else OutputParser(thinking == "open")
            job.add(request, Answer(self._tokenizer, params, index, parser))
        return job


@dataclass(frozen=True)
class _Handling:
    """What is known of one prompt's job besides the prompt. `deadline` and `start` are on their two clocks."""

    request_id: str
    params: SamplingParams
    options: RequestOptions
    deadline: float | None
    start: float


def _each_params(params: Any, default: SamplingParams, count: int) -> Sequence[SamplingParams]:
    """The parameters of each prompt.

    Raises:
        SettingError: they are no SamplingParams, or not as many as prompts.
    """
    if not isinstance(params, (list, tuple)):
        return [_checked(default if params is None else params, "")] * count
    if len(params) != count:
        raise SettingError(
            f"{len(params)} SamplingParams for {count} prompts", hint="give one for all, or a list of one for each"
        )
    return [_checked(own, f"sampling_params[{position}]") for position, own in enumerate(params)]


def _checked(params: Any, where: str) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise SettingError(
            f"sampling_params is of type {type(params).__name__}, not SamplingParams",
            where=where,
            hint="one for all prompts, or a list of one for each: SamplingParams(temperature=0, max_tokens=64)",
        )
    return params
