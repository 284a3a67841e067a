"""Workloads: exact lengths, shared prefixes, random arrivals, and the same again for the same seed."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.workload import ServeSettings, make_workload, warm_up
from qwill.errors import SettingError
from qwill.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


def test_lengths_lie_in_their_ranges_and_reach_both_ends(tokenizer: Tokenizer) -> None:
    settings = ServeSettings(requests=200, prompt_tokens=(3, 6), new_tokens=(1, 2))
    workload = make_workload(settings, tokenizer)
    assert {len(one.prompt_token_ids) for one in workload} == {3, 4, 5, 6}
    assert {one.new_tokens for one in workload} == {1, 2}
    assert settings.longest == (6, 2)


def test_the_prefix_is_the_same_for_all_and_what_follows_is_not(tokenizer: Tokenizer) -> None:
    settings = ServeSettings(requests=20, prompt_tokens=(16,), shared_prefix=50)
    prompts = [one.prompt_token_ids for one in make_workload(settings, tokenizer)]
    assert {len(prompt) for prompt in prompts} == {66}
    assert len({tuple(prompt[:50]) for prompt in prompts}) == 1
    assert len({tuple(prompt[50:]) for prompt in prompts}) == 20
    assert settings.longest == (66, 64)


def test_the_seed_decides_everything(tokenizer: Tokenizer) -> None:
    one, same, other = (
        make_workload(ServeSettings(requests=5, prompt_tokens=(2, 9), rate=3.0, seed=seed), tokenizer)
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_without_a_rate_all_arrive_at_once(tokenizer: Tokenizer) -> None:
    assert {one.seconds for one in make_workload(ServeSettings(requests=9), tokenizer)} == {0.0}


def test_gaps_between_arrivals_are_those_of_a_poisson_process(tokenizer: Tokenizer) -> None:
    workload = make_workload(ServeSettings(requests=4001, prompt_tokens=(1,), rate=20.0), tokenizer)
    gaps = [after.seconds - before.seconds for before, after in itertools.pairwise(workload)]
    assert workload[0].seconds == 0.0
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.06)  # an exponential's deviation is its mean
    assert statistics.pstdev(gaps) == pytest.approx(1 / 20, rel=0.08)


def test_warming_up_takes_other_prompts_than_any_workload(tokenizer: Tokenizer) -> None:
    warm = warm_up(6, tokenizer)
    assert len({tuple(one.prompt_token_ids) for one in warm}) == 6
    prompts = [one.prompt_token_ids for one in make_workload(ServeSettings(requests=50), tokenizer)]
    assert not any(one.prompt_token_ids == prompt[:8] for one in warm for prompt in prompts)


@pytest.mark.parametrize(
    "bad",
    [
        {"requests": 0}, {"prompt_tokens": ()}, {"prompt_tokens": (1, 2, 3)}, {"prompt_tokens": (0,)},
        {"prompt_tokens": (True,)}, {"prompt_tokens": 5}, {"prompt_tokens": (9, 8)}, {"new_tokens": (0, 4)},
        {"new_tokens": (2.0,)}, {"shared_prefix": -1}, {"rate": -0.5}, {"rate": float("nan")}, {"seed": -1},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_measure_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        ServeSettings(**bad)
