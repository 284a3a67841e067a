"""A file of requests, answered into a file of results: OpenAI's batch files, as `vllm run-batch` reads and writes them.

A result is written when it is there, so a run can be killed at any moment: the next one drops the line that was cut
off, tries what had failed once more, and leaves what was answered as it is. Results are never lost: a file that holds
anything but answers to these very requests, by this model, is refused and not touched.
Knows the engine only as something that answers; what a line means, qwill.openai knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qwill.errors import OverloadedError, RequestError, UsageError
from qwill.hub.progress import Progress
from qwill.hub.storage import publish
from qwill.openai.batch import CHAT_URL, BatchLine, Result, as_line, failure, read_line, read_result, result_id, success
from qwill.openai.errors import status_of
from qwill.openai.requests import ChatRequest, CompletionRequest, read_chat, read_completion
from qwill.openai.responses import chat_completion, text_completion
from qwill.outputs import RequestOutput
from qwill.settings import shown

if TYPE_CHECKING:
    from qwill.async_llm import AsyncLLM

__all__ = ["Results", "Summary", "answer_all", "open_requests", "open_results", "read_lines"]

logger = logging.getLogger("qwill")

MAX_LINE_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
RESULTS_BEGIN = b'{"id": "batch_req_'
PATIENCE, PAUSE = 3600.0, 0.5
"""How long, and how often, the engine is asked again when its queue is full, in seconds."""


@dataclass
class Summary:
    """How a run went: of `total` lines `skipped` were answered by an earlier one, the others by this one, or not."""

    total: int
    answered: int = 0
    failed: int = 0
    skipped: int = 0
    new_tokens: int = 0
    seconds: float = 0.0

    def count(self, result: Mapping[str, Any]) -> None:
        """Count a result of this run."""
        response = result["response"]
        if response["status_code"] == 200:
            self.answered += 1
            self.new_tokens += response["body"]["usage"]["completion_tokens"]
        else:
            self.failed += 1

    @property
    def left(self) -> int:
        """Lines that nobody has looked at yet."""
        return self.total - self.answered - self.failed - self.skipped

    def told(self) -> str:
        """`98 answered · 2 failed · 0 skipped · 41210 tok · 812.3 tok/s`, and how many are left after a stop."""
        speed = self.new_tokens / self.seconds if self.seconds else 0.0
        counts = f"{self.answered} answered · {self.failed} failed · {self.skipped} skipped"
        left = f" · {self.left} left: the same command goes on" if self.left else ""
        return f"{counts} · {self.new_tokens} tok · {speed:.1f} tok/s{left}"


class Results:
    """Where results go. `answered` are the ids of the requests that an earlier run has answered there."""

    def __init__(self, stream: BinaryIO, answered: frozenset[str] = frozenset()) -> None:
        self.answered = answered
        self._stream = stream
        self._failed: OSError | None = None

    def add(self, result: Mapping[str, Any]) -> None:
        """Write one line, so that it is in the file when this returns.

        Raises:
            OSError: it cannot be written. Nothing more is then, so that a line which was cut is the last one.
        """
        if self._failed is not None:
            raise self._failed
        line = memoryview(as_line(result))
        try:
            while line:
                line = line[self._stream.write(line) :]
            self._stream.flush()
        except OSError as error:
            self._failed = error
            raise


# Requests


@contextlib.contextmanager
def open_requests(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    """A file of requests that can be read more than once; a stream is copied to a temporary file first.

    Raises:
        UsageError: there is no such file, or it cannot be read.
    """
    try:
        stream = source.open("rb") if isinstance(source, Path) else source
    except OSError as error:
        raise UsageError(f"the requests cannot be read: {error.strerror}", where=str(source)) from error
    with contextlib.ExitStack() as opened:
        if isinstance(source, Path):
            opened.enter_context(stream)
        if stream.seekable():
            yield stream
        else:
            copy = opened.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(stream, copy)
            yield copy


def read_lines(file: BinaryIO) -> Iterator[BatchLine]:
    """Every line from the start of the file, but blank ones. A custom_id that comes again is an error of its line."""
    file.seek(0)
    first: dict[str, int] = {}
    for number, data in enumerate(_bounded_lines(file), start=1):
        text = data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data
        if text.strip():
            line = read_line(text) if not _is_cut(text) else BatchLine("", None, error=_too_long())
            if line.custom_id is not None and first.setdefault(line.custom_id, number) != number:
                line = BatchLine("", None, error=_used_before(line.custom_id, first[line.custom_id]))
            yield line if line.custom_id is not None else _named_by_number(line, number)


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is too long only the beginning, which is then cut."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while _is_cut(line):
            line = file.readline(MAX_LINE_BYTES + 1)


def _is_cut(line: bytes) -> bool:
    return len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")


def _too_long() -> RequestError:
    return RequestError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", code="request_too_large")


def _used_before(custom_id: str, number: int) -> RequestError:
    what = f"custom_id {shown(custom_id)} was used in line {number} already"
    return RequestError(what, where="custom_id", hint="each may be used once")


def _named_by_number(line: BatchLine, number: int) -> BatchLine:
    """A line that has no custom_id of its own is told by its number; no later run looks for its id."""
    assert line.error is not None
    error = line.error
    told = RequestError(f"line {number}: {error.what}", where=error.where, hint=error.hint, code=error.code)
    return replace(line, id=result_id(f"line {number}".encode()), error=told)


# Results


@contextlib.contextmanager
def open_results(path: Path, wanted: Collection[str], model: str) -> Iterator[Results]:
    """A file to which results are added, cleared of what an earlier run left unfinished, and ours alone.

    `wanted` are the ids of the requests, `model` is the name under which they are answered.

    Raises:
        UsageError: another process writes this file; it holds something else than answers to these requests by this
            model; or it cannot be written.
    """
    path = Path(os.path.realpath(path))
    with contextlib.ExitStack() as held:
        try:
            stream, answered = _opened(path, wanted, model, held)
        except OSError as error:
            raise UsageError(f"the results cannot be written: {error.strerror}", where=str(path)) from error
        yield Results(stream, answered)
        if path.is_file():
            os.fsync(stream.fileno())


def _opened(
    path: Path, wanted: Collection[str], model: str, held: contextlib.ExitStack
) -> tuple[BinaryIO, frozenset[str]]:
    """The file and what is answered in it; `held` gives it back. Unbuffered: what is written is there."""
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to go on from
        return held.enter_context(open(path, "wb", buffering=0)), frozenset()
    path.parent.mkdir(parents=True, exist_ok=True)
    held.enter_context(_locked(path))
    answered = _resume(path, wanted, model)
    return held.enter_context(open(path, "ab", buffering=0)), answered


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock file stays, as taking it away would let two in at a bad moment."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        hint = "wait for it, or name another output file"
        raise UsageError("another process is writing these results", where=str(path), hint=hint) from error
    try:
        yield
    finally:
        lock.release()


def _resume(path: Path, wanted: Collection[str], model: str) -> frozenset[str]:
    """The ids of what is answered in the file; failed results and a last line that was cut are taken out of it."""
    if not path.exists():
        return frozenset()
    kept: dict[str, tuple[int, int]] = {}
    with path.open("rb") as old:
        head = old.read(len(RESULTS_BEGIN))
        if head != RESULTS_BEGIN[: len(head)]:
            raise _other_file(path, "something else than results")
        for start, data in _whole_lines(old):
            result = _read_result(path, data)
            if result.answered and result.id not in kept:
                _check_belongs(path, result, wanted, model)
                kept[result.id] = (start, len(data))
    if sum(length for _, length in kept.values()) < path.stat().st_size:
        _rewrite(path, list(kept.values()))
    return frozenset(kept)


def _whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Where each line begins, and the line; a last one without its line feed was cut off."""
    start = file.seek(0)
    for data in file:
        if data.endswith(b"\n"):
            yield start, data
        start += len(data)


def _read_result(path: Path, data: bytes) -> Result:
    try:
        return read_result(data)
    except RequestError as error:
        raise _other_file(path, "something else than results") from error


def _check_belongs(path: Path, result: Result, wanted: Collection[str], model: str) -> None:
    if result.id not in wanted:
        raise _other_file(path, f"the answer to another request, custom_id {shown(result.custom_id)}")
    if result.model != model:
        raise _other_file(path, f"answers of another model, {shown(result.model)}")


def _other_file(path: Path, holds: str) -> UsageError:
    hint = "name another output file, or move this one away"
    return UsageError(f"the output file holds {holds}", where=str(path), hint=hint)


def _rewrite(path: Path, kept: Sequence[tuple[int, int]]) -> None:
    """Put a file with these pieces of the old one in its place; a kill leaves the one or the other."""
    new = path.with_name(f".{path.name}.part")
    with path.open("rb") as old, new.open("wb") as file:
        shutil.copymode(path, new)
        for start, length in kept:
            old.seek(start)
            file.write(old.read(length))
    publish(new, path)


# Answers


async def answer_all(
    llm: AsyncLLM,
    lines: Iterable[BatchLine],
    results: Results,
    *,
    names: Sequence[str],
    in_flight: int,
    summary: Summary,
    progress: Progress,
) -> None:
    """Answer every line that is not answered yet, `in_flight` at once; each result is written when it is there.

    `names` are what the model may be called in a request; the first is what it is called in the results. `summary`
    counts along, so that it is right also when this is cancelled.

    Raises:
        OSError: a result cannot be written.
        EngineError: the engine failed for good.
    """
    waiting, start = iter(lines), time.monotonic()

    async def work() -> None:
        for line in waiting:
            if line.id not in results.answered:
                result = await _answer(llm, line, names)
                results.add(result)
                summary.count(result)
                progress.advance(1)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(in_flight):
                workers.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    finally:
        summary.seconds = time.monotonic() - start


async def _answer(llm: AsyncLLM, line: BatchLine, names: Sequence[str]) -> dict[str, Any]:
    """The result of one line; whatever goes wrong with it is its result, and its alone.

    Raises:
        EngineError: the engine failed for good, which is no line's fault: they are left for the next run.
    """
    try:
        return success(line, await _response(llm, line, names))
    except Exception as error:
        llm.llm.service.check()
        if status_of(error) >= 500:
            logger.warning("the request %s failed: %s", shown(line.custom_id), error)
        return failure(line, error)


async def _response(llm: AsyncLLM, line: BatchLine, names: Sequence[str]) -> dict[str, Any]:
    if line.error is not None:
        raise line.error
    token_bytes, defaults = llm.llm.tokenizer.token_bytes, llm.llm.default_params
    if line.url == CHAT_URL:
        chat = read_chat(line.body, defaults)
        _check(chat, (*names, llm.llm.name))
        how = {"tools": chat.tools, "enable_thinking": chat.enable_thinking}
        outputs = await _patiently(lambda: llm.chat(chat.messages, chat.params, **how))
        top = chat.params.logprobs
        return chat_completion(outputs[0], model=names[0], token_bytes=token_bytes, top_logprobs=top)
    request = read_completion(line.body, defaults)
    _check(request, (*names, llm.llm.name))
    outputs = await _patiently(lambda: llm.generate(request.prompts, request.params))
    return text_completion(outputs, model=names[0], token_bytes=token_bytes)


async def _patiently(ask: Callable[[], Awaitable[list[RequestOutput]]]) -> list[RequestOutput]:
    """What `ask` brings. Lines with many answers each can fill the engine's queue: there is time to wait."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except OverloadedError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(PAUSE)


def _check(request: ChatRequest | CompletionRequest, names: Sequence[str]) -> None:
    if request.stream:
        raise RequestError("a line of a file cannot be streamed", where="stream", hint="leave stream out")
    if request.model is not None and request.model not in names:
        what, hint = f"there is no model {shown(request.model)} here", "there is " + ", ".join(dict.fromkeys(names))
        raise RequestError(what, where="model", hint=hint, code="model_not_found")
