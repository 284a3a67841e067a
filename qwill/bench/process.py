"""The parent's end of a worker process: start it, ask it, end it.

A worker has its own memory, so that its peak is its own; its stderr is kept, and its tail shown when it fails.
Must not know what is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import qwill
from qwill.errors import BenchmarkError

__all__ = ["Worker", "worker_command"]

STDERR_TAIL = 1500
"""Characters of a failed worker's stderr that are shown."""
PATIENCE = 5.0
"""Seconds that a worker may take to end when asked to."""


def worker_command(contestant: str) -> tuple[str, ...]:
    """The command line of our own worker for a contestant."""
    return (sys.executable, "-P", "-m", "qwill.bench.worker", contestant)


class Worker:
    """A running worker, for use in a `with` block: however that is left, the process is gone afterwards."""

    def __init__(self, command: Sequence[str], *, label: str, threads: int) -> None:
        self.label = label
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (close() closes it)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(threads),
            text=True,
            encoding="utf-8",
        )

    def ask(self, op: str, **arguments: Any) -> Any:
        """Send one request and wait for its result.

        Raises:
            BenchmarkError: the worker answered with an error, or ended; with the tail of its stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended; reading says so below
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise self._failure(f"{self.label}: the process ended with code {code} during {op!r}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failure(f"{self.label}: {op!r} failed: {answer['error']:.500}")
        return answer["result"]

    def close(self, *, at_once: bool = False) -> None:
        """End the process: by end of input, or `at_once`, by a signal; by force when it does not follow."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if at_once:
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(at_once=kind is not None)

    def _failure(self, what: str) -> BenchmarkError:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL))
        tail = self._stderr.read().decode("utf-8", "replace").strip()
        where = "the end of its stderr:\n    " + tail.replace("\n", "\n    ") if tail else ""
        return BenchmarkError(what, where=where)


def _environment(threads: int) -> dict[str, str]:
    """The same for every worker: threads, no network, quiet libraries, and this very qwill."""
    here = str(Path(qwill.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    count = str(threads)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
