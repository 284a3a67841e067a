"""The pool of threads beside other processes, in forked children, under several Python threads, and when idle."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

native = pytest.importorskip("qwill._native", reason="the native ops are not built here")

ROOT = Path(__file__).resolve().parents[2]
LAYERS, ROWS, COLUMNS = 24, 1024, 1024


class Layers:
    """A program of one-row linear layers, 4 bytes per weight: it runs as fast as memory can be read."""

    def __init__(self, threads: int) -> None:
        self.pool, self.program, self.x = native.Pool(threads), native.Program(), torch.ones(1, COLUMNS)
        self.weights, self.y = torch.ones(LAYERS, ROWS * COLUMNS), torch.empty(LAYERS, ROWS)
        self.views = [self._layer(weight, y) for weight, y in zip(self.weights, self.y, strict=True)]

    def _layer(self, weight: torch.Tensor, y: torch.Tensor) -> Any:
        view = native.Weight()
        view.add([32, 0, 1, 0, 0], weight.data_ptr(), ROWS, COLUMNS, COLUMNS * 64)
        place = (self.pool, self.program, native.kernels(""))
        sizes = {"x_stride": COLUMNS, "tokens": 1, "bias": 0, "residual": 0, "residual_stride": ROWS}
        native.linear(*place, view, x=self.x.data_ptr(), y=y.data_ptr(), **sizes)
        return view

    def run(self) -> float:
        """Seconds of one run."""
        start = time.perf_counter()
        self.program.run(self.pool)
        return time.perf_counter() - start


def seconds_beside_a_busy_process() -> tuple[float, float]:
    """Seconds of some runs with one thread and with two, in turn, while another process computes without end."""
    one, two = Layers(1), Layers(2)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        times = [(one.run(), two.run()) for _ in range(20)]
    finally:
        busy.kill()
        busy.wait()
    return sum(time for time, _ in times), sum(time for _, time in times)


@pytest.mark.slow
def test_two_threads_are_not_slower_than_one_when_another_process_takes_a_core() -> None:
    for _ in range(4):  # other processes may be about; ours must be good once
        one, two = seconds_beside_a_busy_process()
        if two <= 1.1 * one:
            return
    pytest.fail(f"one thread {one:.3f} s, two threads {two:.3f} s")


def test_a_forked_child_computes_on_the_pool_of_its_parent() -> None:
    script = """
import os, torch
from qwill import _native as native
torch.set_num_threads(1)  # torch's own threads do not come along into a child
pool, kernels = native.Pool(3), native.kernels("")
x, y = torch.arange(100_000.0), torch.empty(100_000)
def double():
    y.fill_(torch.nan)
    native.add(pool, None, kernels, x.data_ptr(), x.data_ptr(), 100_000, y.data_ptr())
    return torch.equal(y, 2 * x)
assert double()
child = os.fork()
if child == 0:
    os._exit(0 if double() and double() else 1)
assert os.waitpid(child, 0)[1] == 0
assert double()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, check=True, timeout=60)


def test_several_python_threads_may_use_it_at_once() -> None:
    pool, kernels, wrong = native.Pool(2), native.kernels(""), []

    def work(seed: int) -> None:
        x = torch.full((100_000,), float(seed))
        y = torch.empty_like(x)
        for _ in range(50):
            y.fill_(torch.nan)
            native.add(pool, None, kernels, x.data_ptr(), x.data_ptr(), len(x), y.data_ptr())
            if not torch.equal(y, x + x):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_idle_pool_uses_no_processor_time() -> None:
    layers = Layers(4)
    layers.run()
    time.sleep(0.05)  # the workers fall asleep
    process = psutil.Process()
    before = process.cpu_times()
    time.sleep(0.5)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.03
    assert layers.run() > 0


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_number_of_threads_that_makes_no_sense_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="1 … 1024"):
        native.Pool(threads)
