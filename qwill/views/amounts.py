"""Times and amounts as people read them: three figures and a unit. Knows nothing of what is measured."""

from __future__ import annotations

__all__ = ["amount", "duration", "percent"]

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float) -> str:
    """0.00123 -> "1.23 ms"; the units are s, ms and µs."""
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if abs(seconds) * scale >= 0.9995:
            return f"{_figures(seconds * scale)} {unit}"
    return f"{_figures(seconds * 1e6)} µs"


def amount(value: float, unit: str) -> str:
    """1_230_000 with "B" -> "1.23 MB"; steps of a thousand."""
    for scale, prefix in UNITS:
        if abs(value) >= 0.9995 * scale:
            return f"{_figures(value / scale)} {prefix}{unit}"
    return f"{value:.0f} {unit}" if value == int(value) else f"{_figures(value)} {unit}"


def percent(share: float) -> str:
    """0.123 -> "12.3 %"; from 100 on without decimals."""
    return f"{100 * share:.0f} %" if share >= 0.9995 else f"{100 * share:.1f} %"


def _figures(value: float) -> str:
    """Three of them: 1.23, 12.3, 123."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}"
