"""LLM: text in, text out. The place where tokens and text meet; everything below works on token ids only."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from qwill.answer import Answer
from qwill.chat import OutputParser, render_chat
from qwill.engine import Engine, StepOutput
from qwill.errors import UsageError
from qwill.hub.progress import Progress, SilentProgress
from qwill.loader import load
from qwill.outputs import Logprob, Metrics, RequestOutput, StreamEvent
from qwill.request import Request, check_prompt, clamp_max_tokens
from qwill.runner import ModelRunner
from qwill.sampler import Sampled
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings, with_overrides

__all__ = ["LLM"]

logger = logging.getLogger("qwill")

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


class LLM:
    """A loaded model. Use it in a `with` block, or call `close()`: its memory is freed then.

    `model` is a catalog name ("qwen2.5-coder-0.5b"), "org/name", "org/name:Q4_K_M", a folder or a .gguf file.
    `settings` are the fields of `qwill.EngineSettings`: dtype, device, threads, max_model_len, …

    Raises:
        SettingError: an unknown setting or a value outside its range.
        QwillError: the model cannot be found, fetched, read or held in memory; see `qwill.errors`.
    """

    def __init__(self, model: str | Path, *, progress: Progress | None = None, **settings: Any) -> None:
        self.settings = with_overrides(EngineSettings(), settings)
        start = time.perf_counter()
        loaded = load(str(model), self.settings, progress or SilentProgress())
        self.load_seconds = time.perf_counter() - start
        self.name = loaded.local.name
        self.path = loaded.local.path
        self.source = loaded.local.source
        self.config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.dtype = str(loaded.kv_cache.keys.dtype).removeprefix("torch.")
        self.device = str(loaded.device)
        self.threads = loaded.threads
        self.max_model_len = loaded.max_model_len
        self.default_params = loaded.default_params
        self._engine: Engine | None = Engine(
            ModelRunner(loaded.model, loaded.kv_cache, loaded.device),
            max_batch_tokens=self.settings.max_batch_tokens,
            vocab_size=min(loaded.tokenizer.vocab_size, loaded.config.vocab_size),
            eos_token_ids=loaded.eos_token_ids,
        )
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}  # by id() of each unfinished request
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        use_cache: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; all are computed together. Outputs are in the order of the prompts.

        A prompt is a string, in which no control token is looked for, or a list of token ids.
        `use_cache=False` computes every token anew at each step: slow, for teaching and comparison.

        Raises:
            PromptError: a prompt is empty or too long, or holds ids outside the vocabulary.
            ModelError: the logits are not finite, and there was but one prompt; with several, the failed ones
                have finish_reason "error" and the others are complete.
        """
        jobs = [self._job(prompt, sampling_params, use_cache=use_cache) for prompt in _as_list(prompts)]
        return self._complete(jobs)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        raw_special: bool = False,
        use_cache: bool = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several. `outputs[i].content` is the answer without its thinking.

        `messages` are OpenAI's: {"role": "user", "content": "…"}. Text in them never becomes a control token
        unless `raw_special`. `enable_thinking` is handed to the chat template; None leaves the template's own.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages. Others: see `generate`.
        """
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        chat = {"tools": tools, "enable_thinking": enable_thinking, "raw_special": raw_special}
        jobs = [self._chat_job(c, sampling_params, use_cache=use_cache, **chat) for c in conversations]
        return self._complete(jobs)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, use_cache: bool = True
    ) -> Generator[StreamEvent, None, None]:
        """`generate` for one prompt, as events. The last is "done"; closing it stops the generation."""
        return self._stream(self._job(prompt, sampling_params, use_cache=use_cache))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        raw_special: bool = False,
    ) -> Generator[StreamEvent, None, None]:
        """`chat` for one conversation, as events of kind "thinking", "content", "tool_call" and, last, "done"."""
        chat = {"tools": tools, "enable_thinking": enable_thinking, "raw_special": raw_special}
        return self._stream(self._chat_job(messages, sampling_params, use_cache=True, **chat))

    def params(self, **overrides: Any) -> SamplingParams:
        """The model's own sampling defaults with some fields replaced.

        Raises:
            SettingError: an unknown field or a value outside its range.
        """
        params: SamplingParams = with_overrides(self.default_params, overrides)
        return params

    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text, without control tokens."""
        return self.tokenizer.encode(text)

    def logits(self, token_ids: Sequence[int], *, all_positions: bool = False) -> Tensor:
        """Logits after the last token (V,), or after each (T, V), in the model's dtype.

        Raises:
            PromptError: no tokens, ids outside the model's vocabulary, or more than the context holds.
        """
        check_prompt(token_ids, vocab_size=self.config.vocab_size, max_model_len=self.max_model_len + 1)
        with self._lock:
            logits = self._running.runner.logits(token_ids, all_positions=all_positions)
        return logits if all_positions else logits[0]

    def close(self) -> None:
        """Stop everything and free the model's memory. May be called twice."""
        self._engine = None
        self._jobs.clear()
        gc.collect()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise UsageError("this LLM is closed", hint="make a new one, and use it inside its `with` block")
        return self._engine

    def _chat_job(
        self, messages: Sequence[Message], params: SamplingParams | None, *, use_cache: bool, **chat: Any
    ) -> _Job:
        prompt = render_chat(self.tokenizer, messages, **chat)
        params = params or self.default_params
        thinks = chat["enable_thinking"] is not False and "enable_thinking" in (self.tokenizer.chat_template or "")
        if params.greedy and (thinks or prompt.starts_in_thinking):
            logger.warning("greedy decoding while thinking tends to loop; the model's own sampling is recommended")
        job = self._job(prompt.token_ids, params, use_cache=use_cache, in_thinking=prompt.starts_in_thinking)
        job.output.prompt = prompt.text
        return job

    def _job(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        use_cache: bool,
        in_thinking: bool | None = None,
    ) -> _Job:
        """A prompt checked and made ready. `in_thinking` is None for plain text, else where a chat's answer begins."""
        start = time.perf_counter()
        params = params or self.default_params
        text = prompt if isinstance(prompt, str) else None
        token_ids = self._encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        check_prompt(token_ids, vocab_size=self.config.vocab_size, max_model_len=self.max_model_len)
        job = _Job(RequestOutput(str(next(self._numbers)), text, token_ids, []), start)
        limit = clamp_max_tokens(params, len(token_ids), self.max_model_len)
        for index in range(params.n):
            request = Request(
                job.output.request_id, token_ids, params, max_tokens=limit, index=index, use_cache=use_cache
            )
            parser = None if in_thinking is None else OutputParser(in_thinking)
            job.add(request, Answer(self.tokenizer, params, index, parser))
        return job

    def _encode_prompt(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        if self.tokenizer.add_bos and self.tokenizer.bos_token_id is not None:
            ids.insert(0, self.tokenizer.bos_token_id)
        return ids

    def _submit(self, jobs: list[_Job]) -> None:
        with self._lock:
            for job in jobs:
                for request in job.requests:
                    self._running.add(request)
                    self._jobs[id(request)] = job

    def _complete(self, jobs: list[_Job]) -> list[RequestOutput]:
        try:
            self._submit(jobs)
            for job in jobs:
                while not job.output.finished:
                    self._step()
        finally:
            self._drop(jobs)
        errors = [answer.output.error for job in jobs for answer in job.answers if answer.output.error]
        if len(jobs) == 1 and errors:
            raise errors[0]
        return [job.output for job in jobs]

    def _stream(self, job: _Job) -> Generator[StreamEvent, None, None]:
        try:
            self._submit([job])
            while (events := job.take_events()) or not job.output.finished:
                yield from events  # while we wait here, another reader's step may bring more
                if not events:
                    self._step()
            for answer in job.answers:
                if answer.output.error:
                    raise answer.output.error
            yield StreamEvent("done", output=job.output)
        finally:
            self._drop([job])

    def _step(self) -> None:
        """One step of the engine; what it brings goes to the jobs it belongs to."""
        with self._lock:
            for step in self._running.step():
                job = self._jobs[id(step.request)]
                job.take(step, self.tokenizer)
                if job.ended(step.request):
                    self._running.finish(step.request)
                    del self._jobs[id(step.request)]

    def _drop(self, jobs: list[_Job]) -> None:
        """Forget what is unfinished: after an error, Ctrl-C or a closed stream."""
        if self._engine is None:
            return
        with self._lock:
            for job in jobs:
                for request in job.requests:
                    if self._jobs.pop(id(request), None) is not None:
                        self._engine.finish(request)
                        job.abort(request)


class _Job:
    """One prompt: its requests, the answers they build, and the clock."""

    def __init__(self, output: RequestOutput, start: float) -> None:
        self.output = output
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self._start = start
        self._first = 0.0
        self._pending: list[StreamEvent] = []
        output.metrics = Metrics(prompt_tokens=len(output.prompt_token_ids))

    def add(self, request: Request, answer: Answer) -> None:
        self.requests.append(request)
        self.answers.append(answer)
        self.output.outputs.append(answer.output)

    def take(self, step: StepOutput, tokenizer: Any) -> None:
        """Add what a step brought; notes times and counts."""
        answer = self.answers[step.request.index]
        if step.sampled is not None:
            self._count()
            _note_logprobs(answer.output, step.sampled, tokenizer)
            hidden = step.finish_reason == "stop"
            self._pending += answer.push(step.sampled.token_id, silent=hidden)
        if step.finish_reason is not None and answer.output.finish_reason is None:
            answer.output.finish_reason = step.finish_reason
            answer.output.stop_reason = step.stop_token_id
            answer.output.error = step.error
        if answer.output.finish_reason is not None:
            self._pending += answer.finish()
            self._see_whether_finished()

    def ended(self, request: Request) -> bool:
        return self.answers[request.index].output.finish_reason is not None

    def abort(self, request: Request) -> None:
        answer = self.answers[request.index]
        answer.output.finish_reason = "abort"
        answer.finish()
        self._see_whether_finished()

    def take_events(self) -> list[StreamEvent]:
        events, self._pending = self._pending, []
        return events

    def _see_whether_finished(self) -> None:
        self.output.finished = all(answer.output.finish_reason for answer in self.answers)

    def _count(self) -> None:
        metrics, now = self.output.metrics, time.perf_counter()
        if metrics.generated_tokens == 0:
            self._first = now
            metrics.time_to_first_token = now - self._start
        metrics.generated_tokens += 1
        metrics.decode_seconds = now - self._first


def _note_logprobs(output: Any, sampled: Sampled, tokenizer: Any) -> None:
    if sampled.logprob is None:
        return
    output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sampled.logprob
    output.logprobs = output.logprobs or []
    output.logprobs.append(
        {
            token_id: Logprob(logprob, rank, tokenizer.decode([token_id], skip_special_tokens=False))
            for token_id, logprob, rank in sampled.top
        }
    )


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt, or several, as a list of prompts."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)
