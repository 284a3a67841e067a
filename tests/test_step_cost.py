"""What a step costs is learned from steps."""

from __future__ import annotations

import math
import random

import pytest

from qwill.step_cost import StepCost


def learned(base: float, slope: float, sizes: list[int], noise: float = 0.05) -> StepCost:
    cost, rng = StepCost(), random.Random(1)
    for rows in sizes:
        cost.note(rows, (base + slope * rows) * rng.uniform(1 - noise, 1 + noise))
    return cost


@pytest.mark.parametrize(("base", "slope"), [(50.0, 6.0), (0.01, 0.0), (1e-6, 1e-3), (5.0, 0.1)])
def test_base_and_slope_are_found(base: float, slope: float) -> None:
    cost = learned(base, slope, random.Random(0).choices(range(1, 10), k=500))
    for rows in (1, 5, 9):
        assert cost.seconds(rows) == pytest.approx(base + slope * rows, rel=0.05)


def test_a_change_is_followed() -> None:
    cost = learned(50.0, 6.0, [1, 5] * 100)
    for rows in [1, 5] * 50:
        cost.note(rows, 20.0 + rows)
    assert cost.seconds(3) == pytest.approx(23.0, rel=0.05)
    assert cost.slope == pytest.approx(1.0, rel=0.2)


def test_an_outlier_changes_little() -> None:
    cost = learned(50.0, 6.0, [1, 5] * 100)
    cost.note(5, 8000.0)
    assert cost.seconds(1) == pytest.approx(56.0, rel=0.15)
    assert cost.seconds(5) == pytest.approx(80.0, rel=0.15)


def test_a_first_step_that_took_much_too_long_is_soon_made_good() -> None:
    cost = StepCost()
    cost.note(1, 5000.0)
    for rows in [1, 4] * 60:
        cost.note(rows, 10.0 + rows)
    assert cost.seconds(4) == pytest.approx(14.0, rel=0.1)


def test_steps_of_one_size_keep_what_was_known_of_others() -> None:
    cost = learned(50.0, 6.0, [1, 5] * 100 + [5] * 20_000)
    assert cost.slope == pytest.approx(6.0, rel=0.5)
    assert cost.seconds(5) == pytest.approx(80.0, rel=0.05)


def test_before_any_step_another_row_is_taken_to_be_cheap() -> None:
    cost = StepCost()
    assert 0 < cost.seconds(2) < 2 * cost.seconds(1)
    cost.note(8, 1.0)
    assert cost.seconds(8) == pytest.approx(1.0)
    assert 0 < cost.seconds(16) < 2.0


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (3, 0.0), (3, -1.0), (3, math.nan)])
def test_a_step_that_says_nothing_changes_nothing(rows: int, seconds: float) -> None:
    cost = learned(50.0, 6.0, [1, 5] * 10)
    before = vars(cost).copy()
    cost.note(rows, seconds)
    assert vars(cost) == before


def test_estimates_are_never_zero_or_below() -> None:
    cost, rng = StepCost(), random.Random(0)
    for _ in range(2000):
        cost.note(rng.randrange(1, 40), rng.random() ** 8 + 1e-9)
        assert all(cost.seconds(rows) > 0 for rows in range(1, 80))
        assert cost.slope >= 0


def test_nor_where_all_steps_are_of_one_size_and_become_much_quicker() -> None:
    cost = learned(10.0, 10.0, [1, 5] * 100 + [5] * 300)
    for _ in range(300):
        cost.note(5, 1.0)
        assert cost.seconds(1) > 0
    assert cost.seconds(5) == pytest.approx(1.0, rel=0.05)


def test_a_row_that_was_dear_by_accident_is_given_another_chance() -> None:
    cost = learned(0.0, 8.0, [8, 24])
    assert cost.slope > 6.0
    for _ in range(500):
        cost.note(8, 64.0)
    assert cost.slope < 6.0
