"""Where the time of a trace went: its ops summed over layers and steps, for each phase. Knows records alone."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from qwill.tracing import OpRecord, StepRecord, Trace

__all__ = ["PHASES", "OpTime", "PhaseTime", "phase_of", "times_of"]

PHASES = ("prefill", "mixed", "decode")
"""In the order in which they are told."""


@dataclass(frozen=True)
class OpTime:
    """All calls of one op by one kind of module, layers together, in one phase; sums of what `OpRecord` has."""

    phase: str
    op: str
    module: str
    dtype: str
    backend: str
    calls: int
    seconds: float
    nbytes: int
    operations: int

    @property
    def name(self) -> str:
        """Which module calls which op: "mlp.down_proj linear"."""
        return f"{self.module} {self.op}".strip()

    @property
    def bytes_per_second(self) -> float:
        """Bytes that had to be moved, by the time taken."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        """Multiplications and additions, by the time taken."""
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.operations / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class PhaseTime:
    """All steps of one phase. `op_seconds` is what the ops took of `seconds`."""

    phase: str
    steps: int
    tokens: int
    seconds: float
    op_seconds: float

    @property
    def outside_seconds(self) -> float:
        """What no op took: Python between the ops, laying out the batch, and the tracing."""
        return self.seconds - self.op_seconds


def times_of(trace: Trace) -> tuple[tuple[OpTime, ...], tuple[PhaseTime, ...]]:
    """The sums for each kind of op, in order of appearance, and for each phase."""
    phases = {step.index: phase_of(step) for step in trace.steps}
    kinds: dict[tuple[str, str, str], list[OpRecord]] = defaultdict(list)
    for op in trace.ops:
        kinds[phases[op.step], op.op, _kind(op.module)].append(op)
    ops = tuple(_summed(*kind, records) for kind, records in kinds.items())
    ordered = sorted(trace.steps, key=lambda step: PHASES.index(phases[step.index]))
    return ops, tuple(
        _phase(phase, list(steps), [one for one in ops if one.phase == phase])
        for phase, steps in itertools.groupby(ordered, key=lambda step: phases[step.index])
    )


def phase_of(step: StepRecord) -> str:
    """The phase: "decode" where each request computes one known token to choose the next, with or without guesses;
    "prefill" where none does; "mixed" where some do.
    """
    decoding = [share.count == 1 and share.num_logits > 0 for share in step.shares]
    return "decode" if all(decoding) else "mixed" if any(decoding) else "prefill"


def _kind(module: str) -> str:
    """A module's path without the number of its layer: "model.layers.3.mlp.down_proj" -> "mlp.down_proj"."""
    return re.sub(r"^model\.(layers\.\d+\.)?", "", module)


def _summed(phase: str, op: str, module: str, records: Sequence[OpRecord]) -> OpTime:
    return OpTime(
        phase=phase,
        op=op,
        module=module,
        dtype="+".join(dict.fromkeys(part for record in records for part in record.dtype.split("+"))),
        backend="+".join(dict.fromkeys(record.backend for record in records)),
        calls=len(records),
        seconds=sum(record.seconds for record in records),
        nbytes=sum(record.nbytes for record in records),
        operations=sum(record.operations for record in records),
    )


def _phase(phase: str, steps: Sequence[StepRecord], ops: Sequence[OpTime]) -> PhaseTime:
    tokens = sum(share.count + share.num_drafts for step in steps for share in step.shares)
    seconds = sum(step.seconds for step in steps)
    return PhaseTime(phase, len(steps), tokens, seconds, op_seconds=sum(one.seconds for one in ops))
