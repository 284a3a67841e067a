"""AsyncLLM: text in, text out, for event loops. One thread steps the engine while there is work; nobody else waits.

Texts become tokens on a small pool of threads. What a step brings is told to the event loops that want it, once per
loop however many answers grew; a slow reader's events wait in its job, and the engine goes on.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import os
import threading
import traceback
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from qwill.errors import EngineError
from qwill.hub.progress import Progress
from qwill.intake import Message, Params, Prompt
from qwill.job import Job
from qwill.llm import LLM, only_answer, outputs_of
from qwill.outputs import RequestOutput, StreamEvent
from qwill.sampling_params import SamplingParams
from qwill.service import Service

__all__ = ["AsyncLLM"]

INTAKE_THREADS = 2


class AsyncLLM:
    """A loaded model for use in event loops, also several at once. Use it in an `async with` block, or `aclose` it.

    `model` and `settings` are those of `qwill.LLM`, and so are the errors. Loading takes its time: inside a running
    loop, `await asyncio.to_thread(AsyncLLM, model)`. What is known of the model is in `llm`, an `LLM` with the same
    engine, which other threads may use meanwhile.

    Cancelling a call, or closing a stream, ends its requests within one step of the engine. When the engine fails for
    good, every call, waiting or new, raises EngineError.
    """

    def __init__(self, model: str | Path, *, progress: Progress | None = None, **settings: Any) -> None:
        self.llm = LLM(model, progress=progress, **settings)
        self._service = self.llm.service
        self._bells: dict[asyncio.AbstractEventLoop, _Bell] = {}
        self._threads = ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="qwill-intake")
        self._stepper = _Stepper(self._service)
        weakref.finalize(self, self._stepper.end).atexit = False  # at exit, the stepper ends itself

    async def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, **options: Any
    ) -> list[RequestOutput]:
        """Continue each prompt, as `LLM.generate` does.

        Raises:
            OverloadedError: too many requests wait already, and this is for one prompt; a list waits for its turn.
            Others: see `LLM.generate`.
        """
        jobs = await self._prepare(lambda: self.llm.intake.prompts(prompts, sampling_params, options))
        return await self._complete(jobs)

    async def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, as `LLM.chat` does."""
        jobs = await self._prepare(lambda: self.llm.intake.conversations(messages, sampling_params, options))
        return await self._complete(jobs)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """The events of `LLM.stream`, for `async for`. Errors come with the first of them."""
        return self._events(lambda: self.llm.intake.prompts(prompt, sampling_params, options))

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """The events of `LLM.stream_chat`, for `async for`. Errors come with the first of them."""
        return self._events(lambda: self.llm.intake.conversations(messages, sampling_params, options))

    def abort(self, request_id: str) -> bool:
        """End a request of this name, from any thread; see `LLM.abort`. Never waits."""
        return self._service.abort(request_id)

    def params(self, **overrides: Any) -> SamplingParams:
        """The model's own sampling defaults with some fields replaced; see `LLM.params`."""
        return self.llm.params(**overrides)

    async def aclose(self) -> None:
        """End every call with a UsageError, and free the model's memory. May be called twice."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _close(self) -> None:
        self._stepper.end(wait=True)
        self.llm.close()
        self._threads.shutdown(wait=False)

    async def _prepare(self, make: Callable[[], list[Job]]) -> list[Job]:
        """Jobs made off the loop."""
        self._service.check()
        try:
            made = asyncio.get_running_loop().run_in_executor(self._threads, make)
        except RuntimeError:
            self._service.check()  # closed since we looked
            raise
        return await made

    async def _complete(self, jobs: list[Job]) -> list[RequestOutput]:
        reader = _Reader(self._bell(), self._service, only_ends=True)
        try:
            self._submit(jobs, reader)
            for job in jobs:
                while not job.output.finished:
                    await reader.wait()
        finally:
            self._service.drop(jobs)
        return outputs_of(jobs, self._service)

    async def _events(self, make: Callable[[], list[Job]]) -> AsyncGenerator[StreamEvent, None]:
        job = only_answer(await self._prepare(make))
        reader = _Reader(self._bell(), self._service, only_ends=False)
        try:
            self._submit([job], reader)
            finished = False
            while not finished:
                await reader.wait()
                finished = job.output.finished  # before its events: the last ones come before this word
                for event in job.take_events():
                    yield event
            outputs_of([job], self._service)
            yield StreamEvent("done", output=job.output)
        finally:
            self._service.drop([job])

    def _submit(self, jobs: list[Job], reader: _Reader) -> None:
        for job in jobs:
            job.listener = reader.note
        self._service.submit(jobs, patient=len(jobs) > 1)
        self._stepper.wake()

    def _bell(self) -> _Bell:
        """The bell of the running loop; those of closed loops are taken down."""
        loop = asyncio.get_running_loop()
        if loop not in self._bells:
            self._bells = {other: bell for other, bell in self._bells.copy().items() if not other.is_closed()}
            self._bells[loop] = _Bell(loop)
        return self._bells[loop]


class _Bell:
    """Wakes tasks of one event loop, from any thread; however many are to wake, the loop is called once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._rung: collections.deque[asyncio.Event] = collections.deque()
        self._called = False

    def ring(self, news: asyncio.Event) -> None:
        """Set `news` in its loop, soon."""
        self._rung.append(news)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # closed in this moment
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._called = False
        while self._rung:
            self._rung.popleft().set()


class _Reader:
    """A task that waits for news of its jobs: of their ends only, or of each token too."""

    def __init__(self, bell: _Bell, service: Service, *, only_ends: bool) -> None:
        self._bell, self._service, self._only_ends = bell, service, only_ends
        self._news = asyncio.Event()

    def note(self, job: Job) -> None:
        """There is news of a job, which the engine's thread tells."""
        if self._bell.loop.is_closed():
            self._service.drop([job])  # nobody waits there any more
        elif job.output.finished or not self._only_ends:
            self._bell.ring(self._news)

    async def wait(self) -> None:
        """Come back when there was news since the last time."""
        await self._news.wait()
        self._news.clear()


class _Stepper:
    """The thread that steps while there is work, and sleeps otherwise. It keeps the service alive, but no AsyncLLM.

    It is a daemon, so that a program which forgets to close can end; but a daemon that is stopped in the middle of
    native code may crash Python, so at exit it is asked to end, and waited for.
    """

    EXIT_SECONDS = 10.0

    def __init__(self, service: Service) -> None:
        self._service = service
        self._work = threading.Condition()  # may be entered again by a garbage collector inside it
        self._ending = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="qwill-engine", daemon=True)
        atexit.register(self._at_exit)
        self._thread.start()

    def wake(self) -> None:
        """There is work."""
        with self._work:
            self._work.notify()

    def end(self, *, wait: bool = False) -> None:
        """Let the thread end after its step; with `wait`, come back when it has."""
        if os.getpid() != self._process:
            return  # the thread, and whoever holds the condition, stayed behind in the parent
        self._ending = True
        self.wake()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(self.EXIT_SECONDS)

    def _at_exit(self) -> None:
        self.end(wait=True)

    def _run(self) -> None:
        try:
            while self._wait():
                self._service.step()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they hold the model
            self._service.close(EngineError.unforeseen(error))
        finally:
            atexit.unregister(self._at_exit)

    def _wait(self) -> bool:
        """Sleep until there is work; False when it is time to end."""
        with self._work:
            while not (self._ending or self._service.busy):
                self._work.wait()
        return not self._ending
