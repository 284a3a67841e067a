"""Faults on purpose, to prove that one request's failure stays its own: QWILL_FAULT=PLACE:REQUEST or PLACE:#N.

PLACE is `model` (a forward pass) or `sample` (choosing a token). With a request's id, every pass that serves it fails
there; with #N, the N-th one does, whomever it serves. Unset, as it should be, nothing happens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from qwill.errors import SettingError

__all__ = ["Faults", "InjectedFaultError"]


class InjectedFaultError(RuntimeError):
    """Raised where QWILL_FAULT says: an exception that nobody foresaw."""


class Faults:
    """The fault that `text` asks for; none where it is empty.

    Raises:
        SettingError: not PLACE:REQUEST or PLACE:#N.
    """

    def __init__(self, text: str = "") -> None:
        match = re.fullmatch(r"(model|sample):(#(?P<number>[1-9]\d{0,8})|(?P<request>[^#].*))", text) if text else None
        if text and not match:
            raise SettingError(f"QWILL_FAULT={text!r:.100} is not a fault", hint="model:REQUEST, sample:#3, …")
        self._place = match[1] if match else ""
        self._number = int(match["number"] or 0) if match else 0
        self._request = (match["request"] if match else None) or ""
        self._passes = 0

    @classmethod
    def from_environment(cls) -> Faults:
        """What QWILL_FAULT asks for."""
        return cls(os.environ.get("QWILL_FAULT", ""))

    def check(self, place: str, request_ids: Iterable[str]) -> None:
        """Called at each place, with the requests that are served there.

        Raises:
            InjectedFaultError: here and now is where something shall fail.
        """
        if place != self._place:
            return
        self._passes += 1
        if self._passes == self._number or self._request in request_ids:
            raise InjectedFaultError(f"a fault was asked for at {place}, pass {self._passes}")
