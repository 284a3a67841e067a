"""StepCost: how long a step takes as a function of its rows, learned while steps go by. Torch-free; reads no clock."""

from __future__ import annotations

__all__ = ["StepCost"]

FORGET = 0.05
"""Share by which an observation counts less with each newer one: contexts grow, and machines are shared."""

FIRST_SLOPE = 0.15
"""What another row costs, in first rows, until it is known: measured for 0.6B parameters in int4 on two cores."""

FADE = 0.01
"""Share of the way back to the first slope, for each step from which nothing is to be learned about it."""

LEAST_VARIANCE = 0.02
"""In rows squared: of steps that are all of one size, nothing is to be learned about other sizes."""


class StepCost:
    """seconds = base + slope × rows, by least squares with exponentially fading weights.

    An outlier (the machine was busy elsewhere) counts as twice what was expected, and no more.
    """

    def __init__(self) -> None:
        self.slope = FIRST_SLOPE
        """Seconds of one more row; never negative. In units of a first row before anything was noted."""
        self._rows, self._seconds = 0.0, 1.0  # weighted means
        self._variance, self._covariance = 0.0, 0.0
        self._noted = 0

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take."""
        return self._seconds + self.slope * (rows - self._rows)

    def note(self, rows: int, seconds: float) -> None:
        """Learn from one step. A step without rows or without a time says nothing."""
        if rows < 1 or not seconds > 0.0:
            return
        if self._noted == 0:
            self._start(rows, seconds)
            return
        self._noted += 1
        new = max(FORGET, 1 / self._noted)
        seconds = min(seconds, 2 * self.seconds(rows))
        more_rows, more_seconds = rows - self._rows, seconds - self._seconds
        self._rows += new * more_rows
        self._seconds += new * more_seconds
        self._variance = (1 - new) * (self._variance + new * more_rows**2)
        self._covariance = (1 - new) * (self._covariance + new * more_rows * more_seconds)
        if self._variance > LEAST_VARIANCE:
            slope = self._covariance / self._variance
        else:  # back to what is usual, slowly: a slope that was wrong by accident must not end guessing for good
            slope = self.slope + FADE * (_usual_slope(rows, seconds) - self.slope)
        # Between nothing and all of it: with a base below zero, small steps would take less than no time.
        self.slope = min(max(slope, 0.0), self._seconds / self._rows)

    def _start(self, rows: int, seconds: float) -> None:
        self.slope = _usual_slope(rows, seconds)
        self._rows, self._seconds = float(rows), seconds
        self._variance, self._covariance = 1.0, self.slope
        self._noted = 1


def _usual_slope(rows: int, seconds: float) -> float:
    """What another row costs in a step of so many rows and seconds, if it costs as much as it mostly does."""
    return FIRST_SLOPE * seconds / (1 + FIRST_SLOPE * (rows - 1))
