"""Three figures and a unit, at every edge between two units."""

from __future__ import annotations

import pytest

from qwill.views.amounts import amount, duration, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 µs"),
        (1.234e-6, "1.23 µs"),
        (12.34e-6, "12.3 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (0.1234, "123 ms"),
        (0.9996, "1.00 s"),
        (75.0, "75.0 s"),
        (1234.0, "1234 s"),
        (-0.0021, "-2.10 ms"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (0.5, "0.50 B"),
        (999.6, "1.00 kB"),
        (54_448, "54.4 kB"),
        (9.996e8, "1.00 GB"),
        (2e13, "20.0 TB"),
    ],
)
def test_an_amount(value: float, text: str) -> None:
    assert amount(value, "B") == text


def test_a_share() -> None:
    assert [percent(share) for share in (0.0, 0.0123, 0.9994, 0.9996, 1.5)] == [
        "0.0 %",
        "1.2 %",
        "99.9 %",
        "100 %",
        "150 %",
    ]
