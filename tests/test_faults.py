"""A fault happens where and when it was asked for, and nowhere else."""

from __future__ import annotations

import pytest

from qwill.errors import SettingError
from qwill.faults import Faults, InjectedFaultError


def test_without_a_wish_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWILL_FAULT", raising=False)
    for _ in range(3):
        Faults.from_environment().check("model", ["1"])


def test_a_numbered_pass_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_FAULT", "sample:#2")
    faults = Faults.from_environment()
    faults.check("sample", ["1"])
    faults.check("model", ["1"])
    with pytest.raises(InjectedFaultError, match="sample, pass 2"):
        faults.check("sample", ["1"])
    faults.check("sample", ["1"])


def test_a_request_fails_wherever_it_is_served() -> None:
    faults = Faults("model:7")
    faults.check("model", ["1", "77"])
    for _ in range(2):
        with pytest.raises(InjectedFaultError):
            faults.check("model", ["1", "7"])


@pytest.mark.parametrize("text", ["model", "model:", "model:#", "model:#0", "elsewhere:7", ":7", "sample:#-1"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="QWILL_FAULT"):
        Faults(text)
