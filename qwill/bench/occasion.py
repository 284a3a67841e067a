"""When, where and with which settings something is measured: the head that the records of all benchmarks share."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qwill.bench.machine import machine_facts
from qwill.bench.notes import general_notes
from qwill.bench.results import Group, Measurement, settings_record
from qwill.bench.target import Target

__all__ = ["Occasion"]


@dataclass(frozen=True)
class Occasion:
    """The beginning of a measurement."""

    benchmark: str
    model: str
    settings: dict[str, Any]
    started: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    """As it was before the benchmark made it busy."""

    @classmethod
    def now(cls, benchmark: str, model: str, *settings: Any) -> Occasion:
        """Begin. `settings` are dataclasses."""
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(benchmark, model, settings_record(*settings), started, machine_facts())

    def measured(
        self, target: Target, groups: list[Group], *, read_bandwidth: float, notes: Sequence[str] = ()
    ) -> Measurement:
        """The end: what came out. `notes` follow those that are true of any table."""
        return Measurement(
            benchmark=self.benchmark,
            model=self.model,
            architecture=target.config.architecture,
            parameters=target.parameters,
            dtype=target.setup.dtype,
            threads=target.setup.threads,
            started=self.started,
            machine=self.machine,
            read_bandwidth=read_bandwidth,
            settings=self.settings,
            groups=groups,
            notes=[*general_notes(self.machine, target.setup.dtype), *notes],
        )
