"""What a reader must know to judge a table of speeds."""

from __future__ import annotations

from typing import Any

__all__ = ["general_notes", "warnings"]

HOW_TO_READ = (
    "load: weights and tokenizer, files in the page cache, imports not counted; prefill: prompt tokens over TTFT; "
    "GB/s: bytes of weights times decode speed, and its share of the measured read bandwidth"
)
BUSY = 0.5
"""A load average above this before a benchmark starts means that something else is running."""


def general_notes(machine: dict[str, Any], dtype: str) -> list[str]:
    """Notes for a table of rows: how to read it, and what may be wrong with it."""
    return [HOW_TO_READ, *warnings(machine, dtype)]


def warnings(machine: dict[str, Any], dtype: str) -> list[str]:
    """Notes for any table: whether the machine was busy, how it computes `dtype`."""
    notes = []
    if machine["load_average"] > BUSY:
        notes.append(f"other work was going on (load average {machine['load_average']:.1f}): do not trust the times")
    if dtype == "bfloat16" and not any("bf16" in flag for flag in machine["cpu_flags"]):
        notes.append("this processor has no bfloat16 arithmetic: it is computed by way of float32")
    return notes
