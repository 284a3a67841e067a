"""A contestant's turn: what is refused as unequal work, and which differences of token ids rounding may explain."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.target import Target, find_target
from qwill.bench.trial import Entrant, take_turn
from qwill.errors import BenchmarkError
from qwill.hub.progress import SilentProgress
from qwill.settings import EngineSettings

Pretender = Callable[..., Entrant]


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Target:
    engine = EngineSettings(dtype="float32", threads=1)
    return find_target(str(tiny_model), engine, SilentProgress(), prompt_tokens=8, new_tokens=20, count=4)


def in_dtype(target: Target, dtype: str) -> Target:
    return replace(target, setup=replace(target.setup, dtype=dtype))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"dtype": "bfloat16"}, "one runs with dtype = bfloat16, the comparison with float32"),
        ({"threads": 2}, "one runs with threads = 2, the comparison with 1"),
        ({"extra": 1}, "gave 21 new tokens instead of 20"),
        ({"extra": -1}, "gave 19 new tokens instead of 20"),
        ({"speed": -100.0}, "its times are not those of 20 tokens in order"),
        ({"refuses": "load"}, "'load' failed: it refused"),
        ({"dies_on": "peak_rss"}, "ended with code 3 during 'peak_rss'"),
    ],
    ids=str,
)
def test_unequal_or_failed_work_is_refused(
    target: Target, pretender: Pretender, wish: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchmarkError, match=message):
        take_turn(pretender("one", **wish), target, [20], {})


def test_an_engine_with_number_formats_of_its_own_still_needs_the_same_threads(
    target: Target, pretender: Pretender
) -> None:
    rows = take_turn(pretender("one", own_numerics=True, dtype="GGUF"), target, [20], {})
    assert rows[20].dtype == "GGUF"
    with pytest.raises(BenchmarkError, match="threads"):
        take_turn(pretender("one", own_numerics=True, threads=3), target, [20], {})


def test_each_amount_of_work_gets_its_row_without_the_warm_up(target: Target, pretender: Pretender) -> None:
    told: list[str] = []
    rows = take_turn(pretender("one", speed=50.0), target, [2, 20], {}, step=told.append)
    assert [len(row.runs) for row in rows.values()] == [3, 3]
    assert [len(row.runs[0].token_ids) for row in rows.values()] == [2, 20]
    assert rows[20].decode_speed.median == pytest.approx(50.0)
    assert rows[20].time_to_first_token.median == pytest.approx(0.5)
    assert rows[20].prefill_speed.median == pytest.approx(16.0)
    assert told == ["loaded", *(["warm-up", "run 1", "run 2", "run 3"] * 2)]


@pytest.mark.parametrize(
    ("dtype", "logits", "near"),
    [
        ("float32", [5.0, 5.0], False),
        ("float32", [5.0, 5.000001], False),
        ("bfloat16", [5.0, 5.1], True),
        ("bfloat16", [-5.1, -5.0], True),
        ("bfloat16", [5.0, 5.3], False),
        ("float16", [5.0, 5.01], True),
        ("float16", [5.0, 5.1], False),
        ("bfloat16", None, False),
    ],
)
def test_only_a_near_tie_in_half_precision_is_forgiven(
    target: Target, pretender: Pretender, dtype: str, logits: list[float] | None, near: bool
) -> None:
    target = in_dtype(target, dtype)
    reference = take_turn(pretender("reference"), target, [20], {})
    other = pretender("other", parts_at=7, logits=logits)
    if near:
        difference = take_turn(other, target, [20], reference)[20].difference
        assert difference is not None
        assert (difference.repeat, difference.position, difference.near_tie) == (0, 7, True)
        assert difference.got == difference.expected + 1
        return
    with pytest.raises(BenchmarkError, match="new token 8 of repeat 1: id") as error:
        take_turn(other, target, [20], reference)
    assert ("float32" in error.value.hint) == (dtype != "float32") or "one of the two is wrong" in error.value.hint


def test_an_engine_with_number_formats_of_its_own_may_differ_and_it_is_noted(
    target: Target, pretender: Pretender
) -> None:
    reference = take_turn(pretender("reference"), target, [20], {})
    row = take_turn(pretender("other", own_numerics=True, parts_at=0), target, [20], reference)[20]
    assert row.difference is not None
    assert not row.difference.near_tie
    assert "it does not tell its logits" in str(row.difference)


def test_the_contestant_is_asked_for_its_logits_after_the_common_tokens(
    target: Target, pretender: Pretender, tmp_path: Path
) -> None:
    target = in_dtype(target, "bfloat16")
    reference = take_turn(pretender("reference"), target, [20], {})
    log = tmp_path / "log"
    take_turn(pretender("other", parts_at=3, logits=[1.0, 1.0], log=str(log)), target, [20], reference)
    asked = [request for op, request in map(json.loads, log.read_text().splitlines()) if op == "logits"]
    ids = reference[20].runs[0].token_ids
    assert asked == [{"token_ids": [*target.prompts[1], *ids[:3]], "wanted": [ids[3], ids[3] + 1]}]
