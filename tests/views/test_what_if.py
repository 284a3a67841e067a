"""What would have come after another token is what the engine says to that prefix."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from qwill import LLM, SamplingParams, StructuredOutputsParams
from qwill.errors import PromptError, SettingError
from qwill.inspect import probabilities, trace
from qwill.views.probabilities import Probabilities

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = "Shall I compare 你"
COUNT = len(PROMPT.encode())


@pytest.fixture(scope="module")
def view(llm: LLM) -> Probabilities:
    with trace(llm, residuals=True) as seen:
        llm.generate(PROMPT, GREEDY)
    return probabilities(seen)


def test_with_the_same_token_it_goes_on_as_it_did(view: Probabilities) -> None:
    ids = [p.id for p in view.positions]
    for position in (COUNT, COUNT + 5):
        same = view.what_if(position, ids[position], max_tokens=len(ids) - position - 1)
        assert list(same.ids) == ids[position + 1 :]
        assert same.by == ((ids[position],), same.replaced[1])


def test_with_another_token_it_goes_on_as_a_fresh_request_does(llm: LLM, view: Probabilities) -> None:
    ids = [p.id for p in view.positions]
    for position in (3, COUNT + 2):
        other = view.what_if(position, 70, max_tokens=7)
        fresh = llm.generate([[*ids[:position], 70]], dataclasses.replace(GREEDY, max_tokens=7), cache_salt="fresh")
        assert list(other.ids) == fresh[0].outputs[0].token_ids
        assert other.replaced[0] == ids[position]


def test_the_model_may_choose_again(llm: LLM, view: Probabilities) -> None:
    ids = [p.id for p in view.positions]
    again = view.what_if(COUNT + 1, max_tokens=3)  # greedily it chooses the same
    assert [*again.by[0], *again.ids] == ids[COUNT + 1 : COUNT + 5]
    hot = SamplingParams(temperature=3.0, seed=8, ignore_eos=True)
    drawn = view.what_if(COUNT + 1, params=hot, max_tokens=3)
    fresh = llm.generate([ids[: COUNT + 1]], dataclasses.replace(hot, max_tokens=4), cache_salt="hot")
    assert [*drawn.by[0], *drawn.ids] == fresh[0].outputs[0].token_ids


def test_many_are_computed_together_and_shown(llm: LLM, view: Probabilities) -> None:
    places = view.most_uncertain(3)
    changes = [(position, token_id) for position in places for token_id in view.others(position, 2)]
    steps = llm.stats.steps
    wider = view.with_what_ifs(changes, max_tokens=5)
    assert llm.stats.steps - steps <= 6
    assert [(w.position, w.by[0][0]) for w in wider.what_ifs] == changes
    assert view.what_ifs == ()
    told = wider.data()["what_if"][0]
    assert told["by"]["id"] == changes[0][1]
    assert told["replaced"]["id"] == view.positions[changes[0][0]].id
    assert len(told["ids"]) == 5
    assert "what if" in wider._repr_html_()
    assert view.with_what_ifs([]) == view


def test_the_prefix_comes_from_the_cache(llm: LLM) -> None:
    with trace(llm, residuals=True) as seen:
        llm.generate("x" * 200, GREEDY, cache_salt="mine")
    before = llm.stats.prefix_hit_tokens
    probabilities(seen).what_if(205, 70)
    assert llm.stats.prefix_hit_tokens - before >= 192


def test_a_text_may_take_the_place_and_is_shown_harmless(view: Probabilities) -> None:
    changed = view.what_if(COUNT, "<b>\u202e", max_tokens=2)
    assert changed.by[1] == "<b><U+202E>"
    assert len(changed.by[0]) == 6
    assert "<b>\u202e" not in changed._repr_html_()
    assert "&lt;b&gt;&lt;U+202E&gt;" in changed._repr_html_()


def test_what_is_impossible_is_refused(llm: LLM, view: Probabilities) -> None:
    with pytest.raises(SettingError, match="position = 999"):
        view.what_if(999, 1)
    with pytest.raises(SettingError, match="empty text"):
        view.what_if(3, "")
    with pytest.raises(PromptError, match="outside the vocabulary"):
        view.what_if(3, 10**6)
    with pytest.raises(PromptError, match="empty"):
        view.what_if(0)
    with pytest.raises(SettingError, match="no model to ask"):
        Probabilities(view.positions, view.num_prompt_tokens).what_if(3, 1)
    grammar = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[ab]{9}"), max_tokens=9)
    with trace(llm, residuals=True) as seen:
        llm.generate("a", grammar)
    with pytest.raises(SettingError, match="follows a grammar"):
        probabilities(seen).what_if(2, 70)
    assert len(probabilities(seen).what_if(2, 70, params=GREEDY, max_tokens=3).ids) == 3


def test_numbers_of_numpy_are_numbers(view: Probabilities) -> None:
    place, token = np.array([COUNT, 66])  # of no type that mypy takes for an int
    asked = view.with_what_ifs([(place, token)])
    assert json.loads(json.dumps(asked.data()))["what_if"][0]["by"]["ids"] == [66]
    assert asked.what_ifs == (view.what_if(COUNT, 66),)
