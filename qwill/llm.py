"""LLM: text in, text out, for callers that wait. It loads the model, and joins intake, service and outputs."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from qwill.chat import thinking_tokens
from qwill.engine import Engine, EngineStats
from qwill.errors import SettingError
from qwill.grammar import Grammars
from qwill.hub.progress import Progress, SilentProgress, terminal_progress
from qwill.intake import Intake, Message, Params, Prompt
from qwill.job import Job
from qwill.loader import LoadedModel, load
from qwill.outputs import RequestOutput, StreamEvent
from qwill.request import as_token_ids, check_prompt
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits
from qwill.service import Service
from qwill.settings import EngineSettings, with_overrides
from qwill.speculation_loader import load_speculation
from qwill.speculative import Speculation

__all__ = ["LLM"]


class LLM:
    """A loaded model. Use it in a `with` block, or call `close()`: its memory is freed then.

    `model` is a catalog name ("qwen2.5-coder-0.5b"), "org/name", "org/name:Q4_K_M", a folder or a .gguf file.
    `settings` are the fields of `qwill.EngineSettings`: dtype, device, threads, max_model_len, …
    Any number of threads may use it at once; their requests are computed together.

    Raises:
        SettingError: an unknown setting or a value outside its range.
        QwillError: the model cannot be found, fetched, read or held in memory; see `qwill.errors`.
    """

    def __init__(self, model: str | Path, *, progress: Progress | None = None, **settings: Any) -> None:
        self.settings = with_overrides(EngineSettings(), settings)
        start = time.perf_counter()
        progress = progress or SilentProgress()
        loaded = load(str(model), self.settings, progress)
        speculation = load_speculation(self.settings, loaded, progress)
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
        self.intake = Intake(
            loaded.tokenizer,
            Grammars(loaded.tokenizer, loaded.vocab_size, loaded.eos_token_ids),
            vocab_size=loaded.config.vocab_size,
            max_model_len=loaded.max_model_len,
            default_params=loaded.default_params,
        )
        self.service = Service(_engine(loaded, self.settings, speculation), reserve=self.settings.max_queue // 2)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Continue each prompt; all are computed together. Outputs are in the order of the prompts.

        A prompt is a string, in which no control token is looked for unless `raw_special`, or a list of token ids.
        `sampling_params` are for all, or a list has one for each. `options` are the fields of
        `qwill.intake.RequestOptions`: use_cache, raw_special, priority, timeout, cache_salt, request_id.
        `progress` shows requests done and tokens per second on stderr; by default for several prompts on a terminal.

        Raises:
            PromptError: a prompt is empty or too long, or holds ids outside the vocabulary.
            SettingError: an option or the parameters are unusable.
            ModelError, DeadlineError, …: what ended the answer, if there was but one prompt; with several, the failed
                ones have finish_reason "error" and the others are complete.
        """
        return self._complete(self.intake.prompts(prompts, sampling_params, options), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several. `outputs[i].content` is the answer without its thinking.

        `messages` are OpenAI's: {"role": "user", "content": "…"}. Text in them never becomes a control token
        unless `raw_special`. Among the `options` are tools and enable_thinking, which go to the chat template
        (None leaves its own choice); the others are those of `generate`.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages. Others: see `generate`.
        """
        return self._complete(self.intake.conversations(messages, sampling_params, options), progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **options: Any
    ) -> Generator[StreamEvent, None, None]:
        """`generate` for one prompt and one answer, as events. The last is "done"; closing it stops the generation.

        Raises:
            SettingError: n is not 1, as the events of several answers could not be told apart. Others: see `generate`.
        """
        return self._events(only_answer(self.intake.prompts(prompt, sampling_params, options)))

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, **options: Any
    ) -> Generator[StreamEvent, None, None]:
        """`chat` for one conversation, as events of kind "thinking", "content", "tool_call" and, last, "done"."""
        return self._events(only_answer(self.intake.conversations(messages, sampling_params, options)))

    def abort(self, request_id: str) -> bool:
        """End a request of this name, from any thread; whoever waits for it gets what there is, with finish_reason
        "abort". False when no such request is unfinished.
        """
        return self.service.abort(request_id)

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
        ids = as_token_ids(token_ids)
        check_prompt(ids, vocab_size=self.config.vocab_size, max_model_len=self.max_model_len + 1)
        logits = self.service.between_steps(lambda engine: engine.runner.logits(ids, all_positions=all_positions))
        logits = logits.clone()  # an ordinary tensor, not one that only inference may change
        return logits if all_positions else logits[0]

    @property
    def stats(self) -> EngineStats:
        """What the engine did so far: a copy, so that two can be compared."""
        return self.service.between_steps(lambda engine: dataclasses.replace(engine.stats))

    def close(self) -> None:
        """Stop everything and free the model's memory. May be called twice."""
        self.service.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete(self, jobs: list[Job], progress: bool | None) -> list[RequestOutput]:
        bar = _Bar(jobs, _progress_for(jobs, progress))
        try:
            self.service.submit(jobs, patient=len(jobs) > 1)
            for job in jobs:
                while not job.output.finished:
                    self.service.step()
                    bar.draw()
        finally:
            self.service.drop(jobs)
            bar.finish()
        return outputs_of(jobs, self.service)

    def _events(self, job: Job) -> Generator[StreamEvent, None, None]:
        try:
            self.service.submit([job])
            finished = False
            while not finished:
                finished = job.output.finished  # before its events, as another thread's step may bring both
                events = job.take_events()
                yield from events
                if not events and not finished:
                    self.service.step()
            if job.error:
                raise job.error
            yield StreamEvent("done", output=job.output)
        finally:
            self.service.drop([job])


def only_answer(jobs: list[Job]) -> Job:
    """The job of a stream, which keeps its events.

    Raises:
        SettingError: it is for several prompts or answers.
    """
    count = sum(len(job.requests) for job in jobs)
    if count != 1:
        raise SettingError(f"n = {count}: a stream has one answer", hint="use n=1, or generate or chat")
    jobs[0].streamed = True
    return jobs[0]


def outputs_of(jobs: list[Job], service: Service) -> list[RequestOutput]:
    """What finished jobs give back.

    Raises:
        QwillError: the error of the only job, or the one that ended the service and with it these jobs.
    """
    if any(job.error for job in jobs):
        service.check()
    if len(jobs) == 1 and jobs[0].error:
        raise jobs[0].error
    return [job.output for job in jobs]


def _engine(loaded: LoadedModel, settings: EngineSettings, speculation: Speculation | None) -> Engine:
    return Engine(
        ModelRunner(loaded.model, loaded.kv_cache, loaded.device),
        Limits(settings.max_batch_tokens, settings.max_num_seqs, settings.max_queue),
        prefix_cache=settings.prefix_cache,
        speculation=speculation,
        thinking=thinking_tokens(loaded.tokenizer),
        vocab_size=loaded.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
    )


def _progress_for(jobs: list[Job], wanted: bool | None) -> Progress | None:
    """Where to show how far a list is: nowhere unless somebody looks on, or wants it."""
    if wanted is None:
        wanted = len(jobs) > 1 and sys.stderr is not None and sys.stderr.isatty()
    return terminal_progress() if wanted else None


class _Bar:
    """How far a list of jobs is. They tell it from whatever thread makes a step; only its owner draws."""

    EVERY_SECONDS = 0.1

    def __init__(self, jobs: list[Job], progress: Progress | None) -> None:
        self._progress = progress
        self._tokens = self._done = self._shown = 0
        self._start = self._drawn = time.perf_counter()
        if progress is not None:
            for job in jobs:
                job.listener = self._note
            progress.start(len(jobs), "generate", unit="requests")

    def _note(self, job: Job) -> None:
        self._tokens += 1
        self._done += job.output.finished

    def draw(self, *, now: bool = False) -> None:
        """Show what is done, every now and then."""
        time_now = time.perf_counter()
        if self._progress is None or not (now or time_now - self._drawn >= self.EVERY_SECONDS):
            return
        self._drawn = time_now
        done, self._shown = self._done - self._shown, self._done
        self._progress.advance(done, f"{self._tokens / (time_now - self._start):.0f} tok/s")

    def finish(self) -> None:
        """Show the end."""
        self.draw(now=True)
        if self._progress is not None:
            self._progress.finish()
