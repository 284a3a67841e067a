"""SamplingParams: how the next token is chosen and when to stop. Torch-free; names are vLLM's.

Order of application (Hugging Face's and vLLM's): logit_bias and penalties, temperature, top_k, top_p, min_p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qwill.errors import SettingError
from qwill.settings import check_settings, setting, shown

__all__ = ["SamplingParams"]

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGIT_BIAS = 1024
INT31 = 2**31 - 1


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
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SettingError(
                f"min_tokens = {self.min_tokens} is larger than max_tokens = {self.max_tokens}",
                hint="lower min_tokens or raise max_tokens",
            )

    @property
    def greedy(self) -> bool:
        """True when the most probable token is always taken."""
        return self.temperature == 0.0


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
