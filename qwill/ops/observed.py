"""Observed ops: the third back end, which has an op computed by another one and lets somebody watch.

Who watches is told the op's name, who computes it, and its arguments, makes the call, and must return its result
unchanged. Knows no op in particular.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Observer", "observers", "observing", "watched"]


class Observer(Protocol):
    """Whoever watches the ops of a thread."""

    def call(self, op: str, backend: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call `body(*arguments)` of an op, computed by "native" or "reference", and return its result."""


observers: dict[int, Observer] = {}
"""Thread -> who watches its ops. Empty, as nearly always, it costs one look."""


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Every op that this thread calls inside goes through `observer`."""
    thread = threading.get_ident()
    before = observers.get(thread)
    observers[thread] = observer
    try:
        yield
    finally:
        if before is None:
            del observers[thread]
        else:
            observers[thread] = before


def watched(ops: Any, backend: str) -> Any:
    """`ops` as this thread sees them: behind its observer, if it has one."""
    observer = observers.get(threading.get_ident())
    return ops if observer is None else _ObservedOps(ops, backend, observer)


class _ObservedOps:
    """All ops of `ops`, each call made by `observer`."""

    def __init__(self, ops: Any, backend: str, observer: Observer) -> None:
        self._ops, self._backend, self._observer = ops, backend, observer

    def __getattr__(self, op: str) -> Callable[..., Any]:
        body = getattr(self._ops, op)
        return lambda *arguments: self._observer.call(op, self._backend, body, arguments)
