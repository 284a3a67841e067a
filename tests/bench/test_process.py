"""Workers as processes: how their failures read, and that they are gone afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import psutil
import pytest

from qwill.bench.process import Worker, worker_command
from qwill.errors import BenchmarkError

Command = Callable[..., tuple[str, ...]]
READ = "import json, sys\nfor line in sys.stdin: print(json.dumps({'result': WHAT}), flush=True)"


def script(what: str) -> list[str]:
    return [sys.executable, "-c", "import os\n" + READ.replace("WHAT", what)]


def test_a_worker_that_dies_shows_the_end_of_its_stderr(pretender_command: Command) -> None:
    with Worker(pretender_command(dies_on="load"), label="it", threads=1) as worker:
        with pytest.raises(BenchmarkError, match="it: the process ended with code 3 during 'load'") as error:
            worker.ask("load", setup={})
        assert "this is why it died" in error.value.where
        with pytest.raises(BenchmarkError, match="ended with code 3"):
            worker.ask("load", setup={})


def test_a_worker_that_cannot_start_says_so() -> None:
    with (
        Worker([sys.executable, "-c", "raise SystemExit('no such thing')"], label="it", threads=1) as worker,
        pytest.raises(BenchmarkError, match="no such thing"),
    ):
        worker.ask("load")


def test_a_long_stderr_is_cut_and_never_blocks() -> None:
    noisy = "import sys\nsys.stderr.write('x' * 1_000_000 + ' the end')\nraise SystemExit(1)"
    with (
        Worker([sys.executable, "-c", noisy], label="it", threads=1) as worker,
        pytest.raises(BenchmarkError, match=r"the end$") as error,
    ):
        worker.ask("load")
    assert len(str(error.value)) < 3000


def test_an_error_answer_is_an_error(pretender_command: Command) -> None:
    with (
        Worker(pretender_command(refuses="logits"), label="it", threads=1) as worker,
        pytest.raises(BenchmarkError, match="it: 'logits' failed: it refused"),
    ):
        worker.ask("logits")


def test_every_worker_gets_its_threads_and_no_network() -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE")
    with Worker(script(f"[os.environ[name] for name in {names!r}]"), label="it", threads=3) as worker:
        assert worker.ask("anything") == ["3", "3", "1"]


def test_a_worker_ends_when_its_block_ends() -> None:
    with Worker(script("os.getpid()"), label="it", threads=1) as worker:
        pid = worker.ask("pid")
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_hanging_worker_is_ended_at_once_after_an_error(pretender_command: Command) -> None:
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Worker(["sleep", "60"], label="it", threads=1):
        raise KeyboardInterrupt
    assert time.monotonic() - start < 4
    assert psutil.Process().children() == []


def test_our_own_worker_answers_without_loading_anything() -> None:
    with Worker(worker_command("qwill"), label="it", threads=1) as worker:
        assert 5 * 2**20 < worker.ask("peak_rss") < 200 * 2**20
