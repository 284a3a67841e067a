"""Memory over many requests."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from benchmarks import engine_soak
from benchmarks.engine_soak import memory, resident_bytes
from benchmarks.engine_work import Work


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_noted_on_the_way_and_at_the_end(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_soak, "NOTES", 3)
    [found] = memory(Work("", tiny=str(tiny_model), threads=1, requests=60, early=30))
    curve = found.details["requests_and_resident_bytes"]
    counts = [count for count, _ in curve]
    assert counts == sorted(set(counts))
    assert counts[-1] >= 60
    early = next(nbytes for count, nbytes in curve if count >= 30)
    assert found.value == pytest.approx(curve[-1][1] / early - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_held_is_seen() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 50 << 20) as held:  # straight from the system: none of it was this process's before
        held.write(b"x" * (50 << 20))
        assert resident_bytes() - before > 40 << 20
