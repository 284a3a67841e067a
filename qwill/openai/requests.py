"""The body of a request of OpenAI's API, read into what `LLM.chat` and `LLM.generate` take.

Every field has an effect or is refused; null is as good as not given. Besides OpenAI's own, the names that vLLM added
are understood: all of `SamplingParams`, `structured_outputs`, `chat_template_kwargs`. Knows no model, file or HTTP.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qwill.errors import PromptError, RequestError, SettingError
from qwill.formats.bounded_json import parse_object
from qwill.messages import check_messages, check_tools
from qwill.sampling_params import SamplingParams, StructuredOutputsParams
from qwill.settings import settings_of, shown

__all__ = ["ChatRequest", "CompletionRequest", "parse_body", "read_chat", "read_completion"]

MAX_MESSAGES = 2048
MAX_TOOLS = 128
MAX_PROMPTS = 64
MAX_TOP_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""Most new tokens of a text completion that does not say; OpenAI's and vLLM's default."""

SAMPLING = frozenset(settings_of(SamplingParams)) - {"structured_outputs"}
COMMON = SAMPLING | {"model", "stream", "structured_outputs", "response_format"}
CHAT = COMMON | {"messages", "tools", "tool_choice", "top_logprobs", "max_completion_tokens", "chat_template_kwargs"}
COMPLETION = COMMON | {"prompt"}

LABELS = {"user": str, "safety_identifier": str, "prompt_cache_key": str, "metadata": dict}
"""Fields that say who asks and why. They change no answer anywhere, so they are accepted."""

ONE_WAY: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "prompt_cache_retention": ("in_memory",),
}
"""Fields of OpenAI's that may only say what is so anyway."""

REFUSED: dict[str, str] = {
    "reasoning_effort": 'max_thinking_tokens limits thinking; chat_template_kwargs {"enable_thinking": false} ends it',
    "functions": "use tools",
    "function_call": "use tool_choice",
    "guided_json": "use structured_outputs or response_format",
    "guided_regex": "use structured_outputs",
    "guided_choice": "use structured_outputs",
    "guided_grammar": "use structured_outputs",
    "audio": "answers are text",
    "moderation": "",
    "prompt_cache_options": "",
    "prediction": "",
    "verbosity": "",
    "web_search_options": "",
    "stream_options": "",
}
"""Fields that people know from elsewhere, and what to use in their place."""


@dataclass(frozen=True)
class ChatRequest:
    """A body of /v1/chat/completions. `model` is None where none is named."""

    model: str | None
    stream: bool
    params: SamplingParams
    messages: list[Any]
    tools: list[dict[str, Any]] | None
    enable_thinking: bool | None


@dataclass(frozen=True)
class CompletionRequest:
    """A body of /v1/completions: one or several prompts, each a text or a list of token ids."""

    model: str | None
    stream: bool
    params: SamplingParams
    prompts: list[Any]


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        RequestError: it is no JSON object in UTF-8, is too large or too deep, or holds a key twice, a number that is
            not finite or half of a surrogate pair.
    """
    try:
        return parse_object(data.strip())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"this is not a JSON object: {error}", code="invalid_json") from error


def read_chat(body: Any, defaults: SamplingParams) -> ChatRequest:
    """Read a body of /v1/chat/completions. What it leaves open is as in `defaults`.

    Raises:
        RequestError: names the field, and what is wrong with it.
    """
    given = _given(body, CHAT)
    messages = _list(given, "messages", MAX_MESSAGES)
    _told_by("messages", lambda: check_messages(messages))
    return ChatRequest(
        model=_text(given, "model"),
        stream=_flag(given, "stream"),
        params=_params({**_sampling(given), **_chat_limits(given), **_chat_logprobs(given)}, defaults),
        messages=messages,
        tools=_tools(given),
        enable_thinking=_enable_thinking(given),
    )


def read_completion(body: Any, defaults: SamplingParams) -> CompletionRequest:
    """Read a body of /v1/completions. What it leaves open is as in `defaults`, but max_tokens, which is 16.

    Raises:
        RequestError: names the field, and what is wrong with it.
    """
    given = _given(body, COMPLETION)
    return CompletionRequest(
        model=_text(given, "model"),
        stream=_flag(given, "stream"),
        params=_params({"logprobs": None, "max_tokens": COMPLETION_TOKENS, **_sampling(given)}, defaults),
        prompts=_prompts(given),
    )


def _given(body: Any, known: frozenset[str]) -> dict[str, Any]:
    """The fields that have a value and an effect."""
    if not isinstance(body, Mapping):
        raise RequestError(f"body is of type {type(body).__name__}, not an object", where="body")
    for name, value in body.items():
        if name not in known:
            _check_without_effect(name, value, known)
    return {name: value for name, value in body.items() if value is not None and name in known}


def _check_without_effect(name: str, value: Any, known: frozenset[str]) -> None:
    if name in LABELS and (value is None or isinstance(value, LABELS[name])):
        return
    if name in ONE_WAY or name in REFUSED:
        allowed = ONE_WAY.get(name, ())
        if value is None or any(type(value) is type(each) and value == each for each in allowed):
            return
        hint = REFUSED.get(name) or (f"leave it out, or {shown(allowed[0])}" if allowed else "leave it out")
        raise RequestError(f"{name} = {shown(value)} is not supported", where=name, hint=hint)
    name = name[:100]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "every field has an effect or is refused"
    raise RequestError(f"unknown field {name!r}", where=name, hint=hint, code="unknown_parameter")


def _told_by(where: str, check: Callable[[], Any]) -> Any:
    """The result of a check of ours, with its error in the API's terms; the error begins with the place."""
    try:
        return check()
    except PromptError as error:
        first = error.what.split(" ")[0].rstrip(":")
        place = first if first.startswith(where) else where
        raise RequestError(error.what, where=place, hint=error.hint) from error


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name} = {shown(value)} is not text", where=name)
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name} = {shown(value)} is not true or false", where=name)
    return value


def _list(given: Mapping[str, Any], name: str, most: int) -> list[Any]:
    if name not in given:
        raise RequestError(f"{name} is missing", where=name, code="missing_required_parameter")
    value = given[name]
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        what = f"has {len(value)} entries" if isinstance(value, list) else f"= {shown(value)} is not a list"
        raise RequestError(f"{name} {what}", where=name, hint=f"allowed: a list of 1 … {most}")
    return value


def _object(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} = {shown(value)} is not an object", where=name)
    return value


def _only(value: Mapping[str, Any], where: str, names: tuple[str, ...]) -> None:
    for name in value:
        if name not in names:
            place = f"{where}.{name[:100]}"
            raise RequestError(f"{place} is not supported", where=place, hint="known: " + ", ".join(names))


def _prompts(given: Mapping[str, Any]) -> list[Any]:
    """OpenAI's four forms: a text, token ids, or a list of either."""
    prompt = given.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(type(token_id) is int for token_id in prompt):
        return [prompt]
    prompts = _list(given, "prompt", MAX_PROMPTS)
    if all(isinstance(each, str) for each in prompts):
        return prompts
    if all(isinstance(each, list) and all(type(token_id) is int for token_id in each) for each in prompts):
        return prompts
    hint = "a text, a list of token ids, or a list of one of them"
    raise RequestError(f"prompt = {shown(prompt)} is not a prompt", where="prompt", hint=hint)


def _tools(given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        hint = 'allowed: "auto" and "none"; structured_outputs makes an answer follow a schema'
        raise RequestError(f"tool_choice = {shown(choice)} is not supported", where="tool_choice", hint=hint)
    if not given.get("tools"):
        return None
    tools = _list(given, "tools", MAX_TOOLS)
    for i, tool in enumerate(tools):
        _check_tool(tool, f"tools[{i}]")
    checked: list[dict[str, Any]] = _told_by("tools", lambda: check_tools(tools))
    return None if choice == "none" else checked


def _check_tool(tool: Any, where: str) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        hint = '{"type": "function", "function": {"name": …, "parameters": …}}'
        raise RequestError(f"{where} is not a function", where=where, hint=hint)
    if function.get("strict"):
        what = "a call's arguments are not held to the schema, so strict is not supported"
        raise RequestError(what, where=f"{where}.function.strict", hint="leave strict out")


def _enable_thinking(given: Mapping[str, Any]) -> bool | None:
    keywords = _object(given, "chat_template_kwargs")
    _only(keywords, "chat_template_kwargs", ("enable_thinking",))
    value = keywords.get("enable_thinking")
    if value is not None and not isinstance(value, bool):
        where = "chat_template_kwargs.enable_thinking"
        raise RequestError(f"{where} = {shown(value)} is not true or false", where=where)
    return value


def _params(values: dict[str, Any], defaults: SamplingParams) -> SamplingParams:
    try:
        return dataclasses.replace(defaults, **values)
    except SettingError as error:
        raise RequestError(error.what, where=_at_fault(values), hint=error.hint) from error


def _at_fault(values: Mapping[str, Any]) -> str:
    """The field that is wrong whatever the others are; "" where only their combination is."""
    for name, value in values.items():
        try:
            SamplingParams(**{name: value})
        except SettingError:
            return name
    return ""


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `SamplingParams`, as it takes them."""
    values = {name: value for name, value in given.items() if name in SAMPLING}
    if values.get("top_k") == -1:
        values["top_k"] = 0  # vLLM's other way to say that all tokens are kept
    if "logit_bias" in values:
        values["logit_bias"] = _logit_bias(values["logit_bias"])
    structured = _structured_outputs(given)
    return values if structured is None else {**values, "structured_outputs": structured}


def _logit_bias(bias: Any) -> Any:
    """JSON has no whole numbers as keys, so they come as text; whatever else is wrong `SamplingParams` tells."""
    if not isinstance(bias, dict):
        return bias
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise RequestError(f"logit_bias: {shown(key)} is not a token id", where="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _chat_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI has a new and an old name for the most new tokens."""
    new, old = given.get("max_completion_tokens"), given.get("max_tokens")
    if new is None:
        return {}
    if old is not None and old != new:
        what = f"max_completion_tokens = {shown(new)} and max_tokens = {shown(old)} contradict each other"
        raise RequestError(what, where="max_completion_tokens", hint="give one of them")
    return {"max_tokens": new}


def _chat_logprobs(given: Mapping[str, Any]) -> dict[str, int | None]:
    """OpenAI's two fields as the one of vLLM's: whether, and how many besides the chosen token."""
    wanted, top = _flag(given, "logprobs"), given.get("top_logprobs", 0)
    if type(top) is not int or not 0 <= top <= MAX_TOP_LOGPROBS:
        hint = f"allowed: 0 … {MAX_TOP_LOGPROBS}"
        raise RequestError(f"top_logprobs = {shown(top)} is out of range", where="top_logprobs", hint=hint)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs", where="top_logprobs", hint='add "logprobs": true')
    return {"logprobs": top if wanted else None}


def _structured_outputs(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    form, wanted = _object(given, "response_format"), _object(given, "structured_outputs")
    if form and wanted:
        what = "response_format and structured_outputs are two names for one thing"
        raise RequestError(what, where="response_format", hint="give one of them")
    where = "response_format" if form else "structured_outputs"
    values = _response_format(form) if form else {name: value for name, value in wanted.items() if value is not None}
    _only(values, where, tuple(field.name for field in dataclasses.fields(StructuredOutputsParams)))
    try:
        return StructuredOutputsParams(**values) if values else None
    except SettingError as error:
        raise RequestError(error.what, where=where, hint=error.hint) from error


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    kind = form.get("type")
    _only(form, "response_format", ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        hint = "allowed: text, json_object, json_schema"
        raise RequestError(
            f"response_format.type = {shown(kind)} is not known", where="response_format.type", hint=hint
        )
    described = _object(form, "json_schema")
    _only(described, "response_format.json_schema", ("name", "description", "schema", "strict"))
    if not isinstance(described.get("schema"), Mapping):
        where = "response_format.json_schema.schema"
        raise RequestError(f"{where} must be a JSON schema", where=where)
    return {"json": described["schema"]}
