"""Notes below a table."""

from __future__ import annotations

from typing import Any

from qwill.bench.notes import general_notes

QUIET: dict[str, Any] = {"load_average": 0.2, "cpu_flags": ["avx512_bf16"]}


def test_a_quiet_machine_with_the_right_arithmetic_needs_no_warning() -> None:
    assert len(general_notes(QUIET, "bfloat16")) == 1


def test_a_busy_machine_is_told() -> None:
    assert "do not trust the times" in general_notes({**QUIET, "load_average": 1.7}, "float32")[1]


def test_missing_bfloat16_arithmetic_is_told_where_it_matters() -> None:
    old = {**QUIET, "cpu_flags": ["avx2"]}
    assert "no bfloat16 arithmetic" in general_notes(old, "bfloat16")[1]
    assert len(general_notes(old, "float32")) == 1
