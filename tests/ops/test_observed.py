"""Ops of one thread go through its observer, and through it alone, for the time of a block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwill import ops
from qwill.ops.observed import observers, observing


class Counting:
    """Notes the names of the ops."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def call(self, op: str, backend: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.seen.append((op, backend))
        return body(*arguments)


def work() -> torch.Tensor:
    return ops.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6) + ops.silu_and_mul(torch.ones(2, 8, dtype=torch.float64))


def test_every_op_of_the_thread_is_seen_with_who_computes_it() -> None:
    plain, observer = work(), Counting()
    with observing(observer):
        assert torch.equal(work(), plain)
    native = "native" if ops.native_ops() else "reference"
    assert observer.seen == [("rms_norm", native), ("silu_and_mul", "reference")]


def test_other_threads_are_not_seen() -> None:
    observer = Counting()
    with observing(observer):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert observer.seen == []


def test_observers_nest_and_go() -> None:
    outer, inner = Counting(), Counting()
    with observing(outer):
        with pytest.raises(ZeroDivisionError), observing(inner):
            work().item() if work().sum() > 1e9 else 1 / 0
        work()
    work()
    assert (len(outer.seen), len(inner.seen)) == (2, 2)
    assert observers == {}
