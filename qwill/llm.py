"""LLM: text in, text out. The place where tokens and text meet; everything below works on token ids only."""

from __future__ import annotations

import collections
import gc
import itertools
import logging
import os
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
from qwill.errors import SettingError, UsageError
from qwill.hub.progress import Progress, SilentProgress
from qwill.job import Job
from qwill.loader import load
from qwill.outputs import RequestOutput, StreamEvent
from qwill.request import Request, as_conversations, as_prompts, as_token_ids, check_prompt, clamp_max_tokens
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
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
        self.dtype = loaded.dtype
        self.decode_bytes = loaded.decode_bytes
        self.device = str(loaded.device)
        self.threads = loaded.threads
        self.max_model_len = loaded.max_model_len
        self.default_params = loaded.default_params
        self._engine: Engine | None = Engine(
            ModelRunner(loaded.model, loaded.kv_cache, loaded.device),
            Limits(self.settings.max_batch_tokens, self.settings.max_num_seqs, self.settings.max_queue),
            prefix_cache=self.settings.prefix_cache,
            vocab_size=min(loaded.tokenizer.vocab_size, loaded.config.vocab_size),
            eos_token_ids=loaded.eos_token_ids,
        )
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}  # by id() of each unfinished request
        self._steps: collections.deque[StepOutput] = collections.deque()  # what the engine did and no job has yet
        self._dropped: collections.deque[Job] = collections.deque()  # given up by their readers, not yet forgotten
        self._warned = False
        self._process = os.getpid()
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        use_cache: bool = True,
        raw_special: bool = False,
    ) -> list[RequestOutput]:
        """Continue each prompt; all are computed together. Outputs are in the order of the prompts.

        A prompt is a string, in which no control token is looked for unless `raw_special`, or a list of token ids.
        `use_cache=False` computes every token anew at each step: slow, for teaching and comparison.

        Raises:
            PromptError: a prompt is empty or too long, or holds ids outside the vocabulary.
            ModelError: the logits are not finite, and there was but one prompt; with several, the failed ones
                have finish_reason "error" and the others are complete.
        """
        how = {"use_cache": use_cache, "raw_special": raw_special}
        return self._complete([self._job(prompt, sampling_params, **how) for prompt in as_prompts(prompts)])

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
        conversations = as_conversations(messages)
        chat = {"tools": tools, "enable_thinking": enable_thinking, "raw_special": raw_special}
        jobs = [self._chat_job(c, sampling_params, use_cache=use_cache, **chat) for c in conversations]
        return self._complete(jobs)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        use_cache: bool = True,
        raw_special: bool = False,
    ) -> Generator[StreamEvent, None, None]:
        """`generate` for one prompt and one answer, as events. The last is "done"; closing it stops the generation.

        Raises:
            SettingError: n is not 1, as the events of several answers could not be told apart. Others: see `generate`.
        """
        return self._stream(self._job(prompt, sampling_params, use_cache=use_cache, raw_special=raw_special))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        raw_special: bool = False,
        use_cache: bool = True,
    ) -> Generator[StreamEvent, None, None]:
        """`chat` for one conversation, as events of kind "thinking", "content", "tool_call" and, last, "done"."""
        chat = {"tools": tools, "enable_thinking": enable_thinking, "raw_special": raw_special}
        return self._stream(self._chat_job(messages, sampling_params, use_cache=use_cache, **chat))

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
        token_ids = as_token_ids(token_ids)
        check_prompt(token_ids, vocab_size=self.config.vocab_size, max_model_len=self.max_model_len + 1)
        with self._lock:
            logits = self._running.runner.logits(token_ids, all_positions=all_positions)
        logits = logits.clone()  # an ordinary tensor, not one that only inference may change
        return logits if all_positions else logits[0]

    def close(self) -> None:
        """Stop everything and free the model's memory. May be called twice."""
        with self._lock:
            self._engine = None
            self._jobs.clear()
            self._steps.clear()
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
        if os.getpid() != self._process:
            raise UsageError("this LLM was made in another process", hint="make it after the fork")
        return self._engine

    def _chat_job(
        self, messages: Sequence[Message], params: SamplingParams | None, *, use_cache: bool, **chat: Any
    ) -> Job:
        start = time.perf_counter()
        prompt = render_chat(self.tokenizer, messages, **chat)
        params = _checked(params, self.default_params)
        thinks = chat["enable_thinking"] is not False and "enable_thinking" in (self.tokenizer.chat_template or "")
        if params.greedy and (thinks or prompt.starts_in_thinking) and not self._warned:
            self._warned = True
            logger.warning("greedy decoding while thinking tends to loop; the model's own sampling is recommended")
        job = self._job(prompt.token_ids, params, use_cache=use_cache, in_thinking=prompt.starts_in_thinking)
        job.output.prompt = prompt.text
        job.start = start
        return job

    def _job(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        use_cache: bool,
        raw_special: bool = False,
        in_thinking: bool | None = None,
    ) -> Job:
        """A prompt checked and made ready. `in_thinking` is None for plain text, else where a chat's answer begins."""
        start = time.perf_counter()
        params = _checked(params, self.default_params)
        text = prompt if isinstance(prompt, str) else None
        token_ids = as_token_ids(prompt) if text is None else self._encode_prompt(text, raw_special)
        check_prompt(token_ids, vocab_size=self.config.vocab_size, max_model_len=self.max_model_len)
        job = Job(RequestOutput(str(next(self._numbers)), text, token_ids, []), start, self.tokenizer)
        limit = clamp_max_tokens(params, len(token_ids), self.max_model_len)
        for index in range(params.n):
            request = Request(
                job.output.request_id, token_ids, params, max_tokens=limit, index=index, use_cache=use_cache
            )
            parser = None if in_thinking is None else OutputParser(in_thinking)
            job.add(request, Answer(self.tokenizer, params, index, parser))
        return job

    def _encode_prompt(self, text: str, raw_special: bool) -> list[int]:
        ids = self.tokenizer.encode(text, parse_special=raw_special)
        if self.tokenizer.add_bos and self.tokenizer.bos_token_id is not None:
            ids.insert(0, self.tokenizer.bos_token_id)
        return ids

    def _submit(self, jobs: list[Job]) -> None:
        with self._lock:
            for job in jobs:
                for request in job.requests:
                    self._running.add(request)
                    self._jobs[id(request)] = job

    def _complete(self, jobs: list[Job]) -> list[RequestOutput]:
        try:
            self._submit(jobs)
            for job in jobs:
                while not job.output.finished:
                    self._step()
        finally:
            self._drop(jobs)
        if len(jobs) == 1 and jobs[0].error:
            raise jobs[0].error
        return [job.output for job in jobs]

    def _stream(self, job: Job) -> Generator[StreamEvent, None, None]:
        if len(job.requests) > 1:
            raise SettingError(f"n = {len(job.requests)}: a stream has one answer", hint="use n=1, or generate or chat")
        return self._events(job)

    def _events(self, job: Job) -> Generator[StreamEvent, None, None]:
        try:
            self._submit([job])
            finished = False
            while not finished:
                with self._lock:  # both at once, as another reader's step may bring both
                    events, finished = job.take_events(), job.output.finished
                yield from events
                if not events and not finished:
                    self._step()
            if job.error:
                raise job.error
            yield StreamEvent("done", output=job.output)
        finally:
            self._drop([job])

    def _step(self) -> None:
        """One step of the engine; what it brings goes to the jobs it belongs to."""
        with self._lock:
            self._forget_dropped()
            engine = self._running
            if not self._steps:
                self._steps.extend(engine.step())
            while self._steps:  # one by one, so that a Ctrl-C between two loses none
                step = self._steps.popleft()
                if job := self._jobs.get(id(step.request)):
                    job.take(step)
                    if job.ended(step.request):
                        engine.finish(step.request)
                        del self._jobs[id(step.request)]
            self._forget_dropped()

    def _drop(self, jobs: list[Job]) -> None:
        """Forget what is unfinished: after an error, Ctrl-C or a closed stream.

        The garbage collector may close a stream in the middle of a step of this very thread, so this must never wait
        for the lock: whoever holds it forgets the jobs before giving it back.
        """
        self._dropped.extend(jobs)
        if self._lock.acquire(blocking=False):
            try:
                self._forget_dropped()
            finally:
                self._lock.release()

    def _forget_dropped(self) -> None:
        while self._dropped:
            job = self._dropped.popleft()
            for request in job.requests:
                if self._jobs.pop(id(request), None) is not None and self._engine is not None:
                    self._engine.finish(request)
                    job.abort(request)


def _checked(params: Any, default: SamplingParams) -> SamplingParams:
    if params is None:
        return default
    if not isinstance(params, SamplingParams):
        raise SettingError(
            f"sampling_params is of type {type(params).__name__}, not SamplingParams",
            hint="one for all prompts: SamplingParams(temperature=0, max_tokens=64)",
        )
    return params
