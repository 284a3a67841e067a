"""SamplingParams: how the next token is chosen, what the answer must look like and when to stop.

Torch-free; names are vLLM's. Order of application (Hugging Face's and vLLM's): logit_bias and penalties, temperature,
top_k, top_p, min_p. Knows nothing of how a grammar is compiled: that is grammar.py's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from qwill.errors import SettingError
from qwill.settings import check_settings, setting, shown

__all__ = ["SamplingParams", "StructuredOutputsParams"]

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_GRAMMAR_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1024
INT31 = 2**31 - 1


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What an answer must look like; exactly one of the fields is given.

    `json` may be given as an object or as its text; it is kept as text. A chat's thinking is not bound by it.

    Raises:
        SettingError: none or several are given, one is empty, of the wrong type or too large.
    """

    json: str | dict[str, Any] | None = setting(None, "JSON schema that the answer follows")
    json_object: bool = setting(False, "any JSON object")
    regex: str | None = setting(None, "regular expression that the whole answer matches; no look-around, \\d is 0 … 9")
    grammar: str | None = setting(None, "grammar that the answer follows, as Lark or GBNF text")
    choice: tuple[str, ...] = setting((), "the answer is one of these texts")

    def __post_init__(self) -> None:
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        object.__setattr__(self, "choice", _choices(self.choice))
        check_settings(self)
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False, ())]
        if len(given) != 1:
            raise SettingError(
                f"structured_outputs: {' and '.join(given) or 'nothing'} is given",
                hint=f"give one of {', '.join(field.name for field in fields(self))}",
            )
        for name in ("regex", "grammar"):
            _check_size(name, getattr(self, name))


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request.

    `temperature=0` takes the most probable token (the lowest id when several are equal), whatever the
    other fields say. Lists are accepted for `stop` and `stop_token_ids`; a single string is one stop string.

    Raises:
        SettingError: for NaN, infinities, booleans given as numbers and values outside the allowed range.
    """

    temperature: float = setting(
        1.0, "randomness; 0 always takes the most probable token", low=0.0, high=100.0, aliases=("--temp",)
    )
    top_k: int = setting(0, "keep only the k most probable tokens; 0 keeps all", unit="tokens", low=0, high=INT31)
    top_p: float = setting(1.0, "keep the smallest set of tokens whose probability reaches this", low=0.0, high=1.0)
    min_p: float = setting(0.0, "drop tokens less probable than this share of the most probable one", low=0.0, high=1.0)
    repetition_penalty: float = setting(
        1.0,
        "divide positive and multiply negative logits of tokens already in prompt or answer",
        low=0.01,
        high=100.0,
        aliases=("--repeat-penalty",),
    )
    presence_penalty: float = setting(
        0.0, "subtract from the logits of tokens already in the answer", low=-2.0, high=2.0
    )
    frequency_penalty: float = setting(
        0.0, "subtract, once per occurrence, from the logits of tokens in the answer", low=-2.0, high=2.0
    )
    seed: int | None = setting(None, "makes sampling repeatable", low=0, high=2**63 - 1)
    n: int = setting(1, "number of answers", low=1, high=16)
    stop: tuple[str, ...] = setting((), "text at which the answer ends; the text itself is not given out")
    stop_token_ids: tuple[int, ...] = setting((), "token ids at which the answer ends, besides the model's own")
    ignore_eos: bool = setting(False, "go on after the model's end-of-text token")
    max_tokens: int | None = setting(
        None,
        "most new tokens; by default what the context leaves",
        unit="tokens",
        low=1,
        high=INT31,
        aliases=("-n", "--predict"),
    )
    min_tokens: int = setting(0, "no stop token before this many new tokens", unit="tokens", low=0, high=INT31)
    logprobs: int | None = setting(
        None, "report log probabilities: of the chosen token and of this many most probable ones", low=0, high=20
    )
    logit_bias: dict[int, float] | None = setting(None, "token id -> number added to its logit, -100 … 100")
    structured_outputs: StructuredOutputsParams | None = setting(
        None, "what the answer must look like: a JSON schema, a regular expression, a grammar or a choice of texts"
    )
    max_thinking_tokens: int | None = setting(
        None,
        "most tokens of a chat's thinking; then it is closed and the answer begins. By default as many as max_tokens",
        unit="tokens",
        low=0,
        high=INT31,
        aliases=("--thinking-budget",),
    )
    skip_special_tokens: bool = setting(True, "leave control tokens out of the text")
    include_stop_str_in_output: bool = setting(False, "keep the stop string in the text")

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        check_settings(self)
        if self.top_p == 0.0:
            raise SettingError("top_p = 0: keeps no token", hint="allowed: above 0, at most 1")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise SettingError(
                f"structured_outputs = {shown(self.structured_outputs)} is not usable",
                hint='for example StructuredOutputsParams(choice=["yes", "no"])',
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SettingError(
                f"min_tokens = {self.min_tokens} is larger than max_tokens = {self.max_tokens}",
                hint="lower min_tokens or raise max_tokens",
            )

    @property
    def greedy(self) -> bool:
        """True when the most probable token is always taken."""
        return self.temperature == 0.0


def _schema_text(schema: Any) -> str:
    """A JSON schema as JSON text, checked for size and depth; what its keywords mean is not looked at here."""
    try:
        if isinstance(schema, str):
            _check_size("json", schema)
            schema = json.loads(schema, parse_constant=_refuse_constant)
        if not isinstance(schema, dict):
            raise ValueError("not an object")
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(
            f"json: not a JSON schema: {error!s:.100}", hint='an object such as {"type": "object"}, or its text'
        ) from error
    _check_size("json", text)
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise SettingError("json: the schema is nested too deeply", hint=f"allowed: {MAX_SCHEMA_DEPTH} levels")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep; looks level by level, without recursion."""
    level = [value]
    for _ in range(depth):
        nested = [item for item in level if isinstance(item, (dict, list, tuple))]
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, (dict, list, tuple)) for item in level)


def _choices(choice: Any) -> tuple[str, ...]:
    texts = _listed("choice", choice, 'a list of texts such as ["yes", "no"]')
    for text in texts:
        if not isinstance(text, str) or not text:
            raise SettingError(f"choice: {shown(text)} cannot be chosen", hint="allowed: texts that are not empty")
    if len(texts) > MAX_CHOICES:
        raise SettingError(f"choice has {len(texts)} texts", hint=f"allowed: at most {MAX_CHOICES}")
    _check_size("choice", "".join(texts) or None)
    return texts


def _check_size(name: str, text: str | None) -> None:
    """Refuse the empty text, halves of surrogate pairs, and more bytes than a grammar may have."""
    if text is None:
        return
    allowed = f"allowed: 1 … {MAX_GRAMMAR_BYTES} bytes of UTF-8"
    try:
        size = len(text) if len(text) > MAX_GRAMMAR_BYTES else len(text.encode())
    except UnicodeEncodeError as error:
        raise SettingError(f"{name} holds half of a surrogate pair, which is not a character", hint=allowed) from error
    if not 1 <= size <= MAX_GRAMMAR_BYTES:
        raise SettingError(f"{name} has {size} bytes", hint=allowed)


def _stop_strings(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else _listed("stop", stop, 'a string or a list such as ["\\n\\n"]')
    allowed = f"at most {MAX_STOP_STRINGS} strings of 1 … {MAX_STOP_CHARACTERS} characters"
    if len(strings) > MAX_STOP_STRINGS:
        raise SettingError(f"stop has {len(strings)} strings", hint=f"allowed: {allowed}")
    for text in strings:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise SettingError(f"stop = {shown(text)} is not a stop string", hint=f"allowed: {allowed}")
    return strings


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    listed = _listed(name, ids, "a list of token ids such as [151645]")
    if len(listed) > MAX_STOP_TOKEN_IDS:  # each token is compared with all of them
        raise SettingError(f"{name} has {len(listed)} ids", hint=f"allowed: at most {MAX_STOP_TOKEN_IDS}")
    for token_id in listed:
        _check_token_id(name, token_id)
    return listed


def _listed(name: str, value: Any, allowed: str) -> tuple[Any, ...]:
    """A list, tuple or set as a tuple; None is the empty one. Iterators are refused: they may never end."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise SettingError(f"{name} = {shown(value)} is not a list", hint=f"allowed: {allowed}")
    return tuple(value)


def _check_token_id(name: str, token_id: Any) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id <= INT31:
        raise SettingError(f"{name}: {shown(token_id)} is not a token id", hint="allowed: 0 … vocabulary size − 1")


def _logit_bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, dict) or len(bias) > MAX_LOGIT_BIAS:
        raise SettingError(
            f"logit_bias = {shown(bias)} is not usable",
            hint=f"a mapping of at most {MAX_LOGIT_BIAS} token ids to numbers",
        )
    for token_id, value in bias.items():
        _check_token_id("logit_bias", token_id)
        # Written so that NaN, which compares false with everything, is refused too.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -100 <= value <= 100:
            raise SettingError(f"logit_bias[{token_id}] = {shown(value)} is not usable", hint="allowed: -100 … 100")
    return {token_id: float(value) for token_id, value in bias.items()}
