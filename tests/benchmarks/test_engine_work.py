"""What a finding is."""

from __future__ import annotations

import pytest

from benchmarks.engine_work import Finding


@pytest.mark.parametrize(
    ("finding", "reached"),
    [
        (Finding("a", 0.08, at_most=0.08), True),
        (Finding("a", 0.09, at_most=0.08), False),
        (Finding("a", 1.7, at_least=1.7), True),
        (Finding("a", 1.6, at_least=1.7), False),
        (Finding("a", 1.0), None),
    ],
)
def test_a_finding_knows_whether_it_is_as_it_must_be(finding: Finding, reached: bool | None) -> None:
    assert finding.reached is reached
