"""explain: answer one prompt while everything is watched, and put all that was seen into one report.

It runs the engine as ever, through `LLM.chat` or `LLM.generate`; the views do the looking. Knows no file and no page.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from qwill.errors import ContextLengthError, QwillError, SettingError
from qwill.llm import LLM
from qwill.outputs import RequestOutput
from qwill.report.report import SECTIONS, About, Report
from qwill.sampling_params import SamplingParams
from qwill.tracing import StepRecord, Trace, trace
from qwill.views.attention import attention
from qwill.views.kv_cache import KVCacheView
from qwill.views.logit_lens import logit_lens
from qwill.views.probabilities import probabilities
from qwill.views.roofline import roofline
from qwill.views.rotary import rotary
from qwill.views.tokens import tokens
from qwill.views.weights import weights

__all__ = ["ANSWER_TOKENS", "MAX_TOKENS", "explain"]

ANSWER_TOKENS = 48
"""How long the answer may be where nobody says."""

MAX_TOKENS = 2048
"""Prompt and answer together; a longer text's pictures could not be read, and would be too many megabytes."""

LENS_POSITIONS, LENS_LOGITS = 64, 1 << 27
"""The logit lens works out a whole vocabulary for each layer and position, in seconds for large ones: it gets the last
positions of a text, at most so many, with at most so many logits in all."""

WHAT_IFS, ALTERNATIVES, WHAT_IF_TOKENS = 4, 2, 10
"""From so many positions of the answer, the most uncertain ones, it is gone on with so many other tokens, so far."""

NOTE = "Request A is the answer. The others begin as it does and go on with another token, for “what if”."

Say = Callable[[str], None]


def explain(
    llm: LLM,
    prompt: str,
    params: SamplingParams | None = None,
    *,
    raw: bool = False,
    system: str | None = None,
    think: bool | None = None,
    raw_special: bool = False,
    read_bandwidth: float | None = None,
    say: Say | None = None,
) -> Report:
    """Answer `prompt` and show how that went: tokens, probabilities, logit lens, attention, cache, time, weights.

    The prompt goes through the model's chat template, with `system` and `think` as in `LLM.chat`; with `raw`, or where
    the model has none, it is continued as it is. Without `params` they are the model's own, and the answer has at
    most 48 tokens. `read_bandwidth` is what memory delivers in bytes per second, where it is known; `say` is told in a
    few words what is being done.

    Raises:
        ContextLengthError: prompt and answer may have more than 2048 tokens.
        SettingError: params.n is not 1; system or think where no chat template is used.
        QwillError: the answer ended with an error; see `LLM.generate`.
    """
    params = params or llm.params(max_tokens=ANSWER_TOKENS)
    if params.n != 1:
        raise SettingError(f"n = {params.n}: a report is about one answer", hint="n=1")
    raw = raw or llm.tokenizer.chat_template is None
    if raw and (system or think is not None):
        raise SettingError("there is no chat template here, so system and think have no meaning", hint="leave them out")
    options: dict[str, Any] = {"raw_special": raw_special, "cache_salt": secrets.token_hex(8)}
    asked: Any = prompt
    if not raw:
        asked = [{"role": "system", "content": system}] if system else []
        asked.append({"role": "user", "content": prompt})
        options["enable_thinking"] = think
    params = _within_reach(llm, asked, params, options, raw)
    say = say or _nothing
    say("answering, and watching")
    with trace(llm, residuals=True, attention=True) as seen:
        output = (llm.generate if raw else llm.chat)(asked, params, progress=False, **options)[0]
    about = _about(llm, prompt, output, params)
    return _Look(llm, seen, params, read_bandwidth, say).report(about)


def _nothing(what: str) -> None:
    """Nobody wants to be told."""


def _within_reach(llm: LLM, asked: Any, params: SamplingParams, options: dict[str, Any], raw: bool) -> SamplingParams:
    """The parameters, with a `max_tokens` that a report has room for.

    Raises:
        ContextLengthError: there is none.
    """
    make = llm.intake.prompts if raw else llm.intake.conversations
    length = len(make(asked, params, options)[0].output.prompt_token_ids)
    if length + (params.max_tokens or 1) > MAX_TOKENS:
        raise ContextLengthError(
            f"a report has room for {MAX_TOKENS} tokens; the prompt has {length}"
            + (f", and its answer may have {params.max_tokens}" if params.max_tokens else ""),
            hint="a shorter prompt, or a lower max_tokens; qwill.inspect shows single pictures of longer texts",
        )
    return dataclasses.replace(params, max_tokens=params.max_tokens or MAX_TOKENS - length)


def _about(llm: LLM, prompt: str, output: RequestOutput, params: SamplingParams) -> About:
    answer, config = output.outputs[0], llm.config
    ended = {"stop": "ended by the model", "length": "cut at max_tokens"}.get(answer.finish_reason or "", "")
    facts = {
        "prompt": _count(len(output.prompt_token_ids), "token"),
        "answer": f"{_count(len(answer.token_ids), 'token')}, {ended or answer.finish_reason}",
        "sampling": _sampling(params),
        "model": f"{config.num_layers} layers, {config.num_heads} heads, {config.num_kv_heads} KV heads",
        "weights": f"{llm.dtype}, {llm.decode_bytes / 1e6:.0f} MB read for each token",
        "machine": f"{llm.device}, {_count(llm.threads, 'thread')}",
        "made": date.today().isoformat(),
    }
    return About(llm.name, prompt, answer.text, facts)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _sampling(params: SamplingParams) -> str:
    if params.greedy:
        return "greedy"
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    plain = SamplingParams()
    told = [(name, getattr(params, name)) for name in names]
    return ", ".join(f"{name} {value:g}" for name, value in told if value and value != getattr(plain, name)) or "plain"


@dataclass(frozen=True)
class _Look:
    """One traced request, and the views of it. A view that cannot be had leaves its reason."""

    llm: LLM
    seen: Trace
    params: SamplingParams
    read_bandwidth: float | None
    say: Say
    later: list[StepRecord] = field(default_factory=list)
    """Steps that were made after the answer."""

    def report(self, about: About) -> Report:
        """All sections."""
        views: dict[str, dict[str, Any]] = {}
        missing: dict[str, str] = {}
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "tokens": lambda: tokens(self.seen).data(),
            "probabilities": self._probabilities,
            "logit_lens": self._logit_lens,
            "attention": lambda: attention(self.seen).data(),
            "rotary": lambda: rotary(self.llm.config, max(2, len(self.seen.request().token_ids))).data(),
            "kv_cache": self._kv_cache,
            "roofline": lambda: roofline(self.seen, read_bandwidth=self.read_bandwidth).data(),
            "weights": lambda: weights(self.llm).data(),
        }
        for name, make in makers.items():
            self.say(f"looking: {SECTIONS[name]}")
            try:
                views[name] = make()
            except QwillError as error:
                missing[name] = f"{error.what}."
        return Report(about, views, missing)

    def _logit_lens(self) -> dict[str, Any]:
        request = self.seen.request()
        last, config = len(request.token_ids), self.llm.config
        most = max(min(LENS_POSITIONS, LENS_LOGITS // (config.vocab_size * (config.num_layers + 1))), 1)
        positions = range(max(request.first, last - most), last)
        return logit_lens(self.seen, positions=positions, top=1).data()

    def _probabilities(self) -> dict[str, Any]:
        """Probabilities, and what would have come after other tokens. An answer that follows a grammar has none."""
        picture = probabilities(self.seen)
        if self.params.structured_outputs is None:
            places = sorted(picture.most_uncertain(WHAT_IFS))
            # Where the context is full after the other token, there is no room for what would come.
            places = [place for place in places if place + 1 < self.llm.max_model_len]
            changes = [(place, token) for place in places for token in picture.others(place, ALTERNATIVES)]
            with trace(self.llm) as more:
                picture = picture.with_what_ifs(changes, max_tokens=WHAT_IF_TOKENS)
            self.later.extend(more.steps)
        return picture.data()

    def _kv_cache(self) -> dict[str, Any]:
        """The steps of the answer, and those of what would have come after other tokens: they share its blocks."""
        last = self.seen.steps[-1]
        later = [dataclasses.replace(s, start=s.start + last.start + last.seconds) for s in self.later]  # one clock
        steps = tuple(dataclasses.replace(s, index=i) for i, s in enumerate([*self.seen.steps, *later]))
        return {**KVCacheView(self.seen.block_size, steps).data(), "note": NOTE if self.later else ""}
