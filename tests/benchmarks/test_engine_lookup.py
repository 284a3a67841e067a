"""Text editing with and without guesses: the same work, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_lookup
from benchmarks.engine_lookup import lookup
from benchmarks.engine_texts import EDITS
from benchmarks.engine_work import Work
from qwill.errors import BenchmarkError
from qwill.outputs import CompletionOutput, RequestOutput


def test_every_edit_and_all_together_are_measured(tiny_talker: Path) -> None:
    *edits, everything = lookup(Work("", real=str(tiny_talker), threads=1, rounds=1, answer_tokens=6))
    assert len(edits) == len(EDITS)
    assert everything.at_least == 1.7
    assert everything.details["gives_the_text_back"] is False
    assert everything.details["accepted_tokens"] <= everything.details["drafted_tokens"]
    seconds = everything.details["seconds"]
    plain, guessing = (sum(min(one[way]) for one in seconds.values()) for way in ("plain", "guessing"))
    assert everything.value == pytest.approx(plain / guessing)
    decoded = sum(count - 1 for count in everything.details["tokens"].values())
    assert everything.details["plain_tokens_per_second"] == pytest.approx(decoded / plain)


def test_other_ids_are_refused() -> None:
    one, other = (RequestOutput("0", None, [], [CompletionOutput(0, token_ids=ids)]) for ids in ([1, 2], [1, 3]))
    with pytest.raises(BenchmarkError, match="code: with guesses the answer is another one"):
        engine_lookup._same_tokens("code", one, other)
