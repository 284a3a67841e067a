"""`qwill batch`: a file of requests into a file of results; wired to qwill.offline_batch, which does the work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from qwill.cli import ENDING_SIGNALS
from qwill.cli.flags import BatchFlags, CommonFlags, Model, check_given, flags_of
from qwill.cli.load import load_async_model, progress_for
from qwill.cli.terminal import notice
from qwill.errors import UsageError
from qwill.offline_batch import Results, Summary, answer_all, open_requests, open_results, read_lines
from qwill.settings import EngineSettings

if TYPE_CHECKING:
    from qwill.async_llm import AsyncLLM
    from qwill.openai.batch import BatchLine

__all__ = ["register"]

EXIT_FAILED = 1
if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(BatchFlags, EngineSettings, CommonFlags)


def register(app: App) -> None:
    """Make `qwill batch` of this app."""
    app.default(batch)


def batch(model: Model, *, given: Flags | None = None) -> int:
    """Answer a file of requests in OpenAI's batch format.

    After a stop the same command goes on: what was answered stays, and what had failed is tried once more.
    """
    given = given or {}
    check_given(given, EngineSettings, BatchFlags)
    source, target = _path(given, "input_file"), _path(given, "output_file")
    names = given.get("served_model_name") or (model,)
    with open_requests(sys.stdin.buffer if source == "-" else Path(source)) as requests:
        wanted = frozenset(line.id for line in read_lines(requests))
        if not wanted:
            raise UsageError("there are no requests", where=source, hint="give one JSON object in each line")
        with _results(target, wanted, names[0]) as results:
            summary = Summary(len(wanted), skipped=len(results.answered))
            llm = load_async_model(model, given) if summary.left else None
            try:
                if llm is not None:
                    _answer(llm, read_lines(requests), results, summary, {**given, "served_model_name": names})
            finally:
                if not given.get("quiet"):
                    notice(summary.told())
    return EXIT_FAILED if summary.failed else 0


def _path(given: dict[str, Any], name: str) -> str:
    path, flag = str(given.get(name) or ""), "--" + name.replace("_", "-")
    if not path or (path.startswith("-") and path != "-"):  # the latter is the next flag
        what = f"{flag} needs a value" if path else f"{flag} is missing"
        raise UsageError(what, hint="qwill batch MODEL -i requests.jsonl -o results.jsonl")
    return path


def _results(target: str, wanted: frozenset[str], model: str) -> contextlib.AbstractContextManager[Results]:
    if target == "-":
        return contextlib.nullcontext(Results(sys.stdout.buffer))
    return open_results(Path(target), wanted, model)


def _answer(
    llm: AsyncLLM, lines: Iterator[BatchLine], results: Results, summary: Summary, given: dict[str, Any]
) -> None:
    progress = progress_for(given)
    progress.start(summary.total, "batch", summary.skipped, unit="requests")

    async def work() -> None:
        async with llm:
            await answer_all(
                llm,
                lines,
                results,
                names=given["served_model_name"],
                in_flight=_in_flight(llm.llm.settings),
                summary=summary,
                progress=progress,
            )

    try:
        _run(work())
    finally:
        progress.finish()


def _in_flight(settings: EngineSettings) -> int:
    """As many requests again as are computed at once wait in the engine, so that the next is at hand when one ends."""
    return settings.max_num_seqs + min(settings.max_num_seqs, settings.max_queue)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end. SIGTERM and SIGHUP end it in order, as Ctrl-C does, and are then raised; twice, at once."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS if in_main_thread}
    caught: list[int] = []

    async def until_signalled() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            caught.append(number)
            loop.remove_signal_handler(number)
            task.cancel()

        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                with contextlib.suppress(NotImplementedError):  # on Windows
                    loop.add_signal_handler(number, end, number)
        await work

    try:
        asyncio.run(until_signalled())
    except asyncio.CancelledError:
        if not caught:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in caught:
        signal.raise_signal(number)
