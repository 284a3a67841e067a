"""Service: one engine and the jobs in it, for any number of threads. Knows requests and jobs, but neither text nor
who waits for them.

Nobody owns the engine: whoever wants an answer calls `step` until it is there, and each step brings all jobs on, also
those of other threads. Only steps, and who looks at the engine between them, take the lock. Submitting, dropping and
aborting are notes that the next step (or the end of this one) reads, so they never wait and may come from a signal
handler, a garbage collector or an event loop.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TypeVar

from qwill.engine import Engine, StepOutput
from qwill.errors import EngineError, QwillError, UsageError
from qwill.job import Job

__all__ = ["Service"]

T = TypeVar("T")

TURN_SECONDS = 0.0002
"""How long a thread that just made a step leaves the lock to others that wait for it."""

PATIENCE_SECONDS = 2.0
"""How long after a Ctrl-C another one no longer waits for the step to end."""


class Service:
    """Runs jobs on `engine` until they are finished or given up.

    `reserve` is the part of the engine's queue, in requests, that long lists leave to everybody else.
    """

    def __init__(self, engine: Engine, *, reserve: int = 0) -> None:
        self._engine: Engine | None = engine
        self._reserve = reserve
        self._lock = threading.Lock()
        self._turns: set[int] = set()  # the threads that make a step or wait for their turn
        self._closing: set[int] = set()  # of those, the ones in which a signal's handler wanted to close
        self._live: dict[int, Job] = {}  # submitted and unfinished, by id()
        self._jobs: dict[int, Job] = {}  # of those, the ones in the engine: by id() of each unfinished request
        self._arrived: collections.deque[Job] = collections.deque()  # for the engine now, or not at all
        self._lists: collections.deque[collections.deque[Job]] = collections.deque()  # for the engine as room appears
        self._steps: collections.deque[StepOutput] = collections.deque()  # what the engine did and no job has yet
        self._dropped: collections.deque[Job] = collections.deque()  # given up, not yet forgotten
        self._why_closed: QwillError | None = None
        self._process = os.getpid()

    @property
    def engine(self) -> Engine | None:
        """The engine, to look at; None once closed."""
        return self._engine

    @property
    def busy(self) -> bool:
        """Whether any job is unfinished."""
        return bool(self._live)

    def check(self) -> None:
        """Refuse to work where that is impossible.

        Raises:
            UsageError: closed, or this process was forked from the one that loaded the model.
            EngineError: the engine failed for good.
        """
        if self._why_closed is not None:
            raise _fresh(self._why_closed)
        if os.getpid() != self._process:
            raise UsageError("this LLM was made in another process", hint="make it after the fork")

    def submit(self, jobs: Sequence[Job], *, patient: bool = False) -> None:
        """Hand jobs over; the next step begins with them. Never waits.

        What the engine refuses ends with that error. `patient` jobs wait for room in the engine's queue, where others
        end with OverloadedError; of several patient lists, each has its turn.

        Raises:
            UsageError, EngineError: see `check`.
        """
        self.check()
        self._live.update((id(job), job) for job in jobs)
        if patient:
            self._lists.append(collections.deque(jobs))
        else:
            self._arrived.extend(jobs)
        if self._why_closed is not None:  # in this very moment, so nobody else will tell these jobs
            self._end_all(self._why_closed)

    def step(self) -> None:
        """One step of the engine; what it brings goes to the jobs it belongs to.

        Raises:
            UsageError, EngineError: see `check`.
        """
        self.check()
        try:
            self._in_turn(self._step)
        finally:
            self._tidy()
        if self._turns:  # Python's locks are not fair: whoever releases one can take it again before others wake up
            time.sleep(TURN_SECONDS)

    def drop(self, jobs: Iterable[Job]) -> None:
        """Give jobs up: after an error, Ctrl-C or a closed stream. Harmless for those that are finished.

        The garbage collector may close a stream in the middle of a step of this very thread, so this must never wait
        for the lock: whoever holds it forgets the jobs.
        """
        self._dropped.extend(job for job in jobs if id(job) in self._live)
        self._tidy()

    def abort(self, request_id: str) -> bool:
        """End every unfinished job of this name within a step, as it is; False when there is none."""
        found = [job for job in list(self._live.values()) if job.output.request_id == request_id]
        self.drop(found)
        return bool(found)

    def between_steps(self, use: Callable[[Engine], T]) -> T:
        """Call `use` with the engine while no step is made.

        Raises:
            UsageError, EngineError: see `check`. Also in a signal's handler that interrupts a step of this thread.
        """
        self.check()
        return self._in_turn(lambda: use(self._running))

    def close(self, why: QwillError | None = None) -> None:
        """End every job with the error `why`, as all later calls will, and free the engine. May be called twice.

        In a signal's handler that interrupts a step of this very thread, the end of the step does it.
        """
        if os.getpid() != self._process:
            return  # the parent's lock may never be released here
        why = why or UsageError("this LLM is closed", hint="make a new one, and use it inside its `with` block")
        if threading.get_ident() in self._turns:
            self._why_closed = self._why_closed or why
            self._closing.add(threading.get_ident())
            return
        self._in_turn(lambda: self._end(why))
        gc.collect()

    def _in_turn(self, act: Callable[[], T]) -> T:
        """What `act` gives, called with the lock; a thread that makes step after step lets those who wait have it."""
        me = threading.get_ident()
        if me in self._turns:
            raise UsageError("a signal's handler cannot use the LLM whose step it interrupts", hint="do it afterwards")
        self._turns.add(me)
        try:
            with self._lock:
                return act()
        finally:
            self._leave()

    def _leave(self) -> None:
        """This thread's turn is over, and it has given the lock back."""
        me = threading.get_ident()
        self._turns.discard(me)
        if me in self._closing:
            self._closing.discard(me)
            self.close(self._why_closed)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            self.check()
        assert self._engine is not None
        return self._engine

    def _step(self) -> None:
        with _undisturbed():
            engine = self._running
            self._forget_dropped()
            self._admit(engine)
            if not self._steps:
                self._steps.extend(engine.step())
            while self._steps:
                self._deliver(engine, self._steps.popleft())
            self._forget_dropped()

    def _deliver(self, engine: Engine, step: StepOutput) -> None:
        job = self._jobs.get(id(step.request))
        if job is None:
            return  # given up, or ended by a stop string earlier in this step
        try:
            job.take(step)
        except Exception as error:
            self._fail(job, error)
            return
        if job.ended(step.request):
            engine.finish(step.request)
            del self._jobs[id(step.request)]
        if job.output.finished:
            self._live.pop(id(job), None)

    def _admit(self, engine: Engine) -> None:
        while self._arrived:
            self._add(engine, self._arrived.popleft())
        while self._lists:
            if not self._lists[0]:
                self._lists.popleft()
            elif engine.busy and len(self._lists[0][0].requests) > engine.room - self._reserve:
                break
            else:
                self._add(engine, self._lists[0].popleft())
                self._lists.rotate(-1)

    def _add(self, engine: Engine, job: Job) -> None:
        """Give a job's requests to the engine: all or none."""
        if job.output.finished:
            return  # given up before its turn came
        try:
            for request in job.requests:
                engine.add(request)
                self._jobs[id(request)] = job
        except Exception as error:
            self._fail(job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        """End one job with what was raised on its account; nobody else needs to know."""
        self._forget(job)
        job.fail(error if isinstance(error, QwillError) else EngineError.unforeseen(error))

    def _forget(self, job: Job) -> None:
        self._live.pop(id(job), None)
        for request in job.requests:
            if self._jobs.pop(id(request), None) is not None and self._engine is not None:
                self._engine.finish(request)

    def _forget_dropped(self) -> None:
        while self._dropped:
            job = self._dropped.popleft()
            if id(job) in self._live:
                self._forget(job)
                job.abort()
        for line in self._lists:
            while line and line[0].output.finished:
                line.popleft()

    def _tidy(self) -> None:
        """Forget what was dropped, unless somebody is at it: who holds the lock comes by here after giving it back."""
        while self._dropped:
            with _undisturbed():
                if not self._lock.acquire(blocking=False):
                    return
                self._turns.add(threading.get_ident())
                try:
                    self._forget_dropped()
                finally:
                    self._lock.release()
                    self._leave()

    def _end(self, why: QwillError) -> None:
        self._why_closed = self._why_closed or why
        self._engine = None
        self._end_all(self._why_closed)
        for line in (self._jobs, self._arrived, self._lists, self._steps, self._dropped):
            line.clear()

    def _end_all(self, why: QwillError) -> None:
        for key, job in list(self._live.items()):
            if self._live.pop(key, None) is not None:  # not ended by another thread meanwhile
                job.fail(_fresh(why))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block is over: a step that stops halfway would lose blocks, or tokens of other threads.

    Where the block takes long, another Ctrl-C does not wait.
    """
    held: list[float] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(time.monotonic())
        if held[-1] - held[0] > PATIENCE_SECONDS and callable(before):
            before(number, frame)

    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if before is None:  # another thread, which no signal reaches, or a handler that is not Python's to put back
        yield
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


def _fresh(error: QwillError) -> QwillError:
    """A copy to raise: one exception raised by many threads would collect the tracebacks of all."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh
