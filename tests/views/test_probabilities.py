"""Probabilities are the sampler's and those of `transformers`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwill import LLM, SamplingParams, StructuredOutputsParams
from qwill.errors import SettingError
from qwill.inspect import probabilities, trace
from qwill.outputs import CompletionOutput
from qwill.views import distributions
from qwill.views.probabilities import Probabilities

PROMPT = "Shall I compare thee 你好 🙂"
COUNT = len(PROMPT.encode())


def looked_at(llm: LLM, params: SamplingParams, **options: Any) -> tuple[Probabilities, CompletionOutput]:
    """The probabilities of an answer to `PROMPT`, and the answer."""
    with trace(llm, residuals=True) as seen:
        output = llm.generate(PROMPT, params, **options)[0].outputs[0]
    return probabilities(seen), output


def test_they_are_the_softmax_of_the_logits_of_transformers(
    llm: LLM, hostile_model: Path, hf_model: Callable[..., Any]
) -> None:
    view, output = looked_at(llm, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True), cache_salt="hf")
    ids = [*llm.tokenize(PROMPT), *output.token_ids]
    with torch.no_grad():
        logits = hf_model(hostile_model)(torch.tensor([ids])).logits[0, :, : llm.tokenizer.vocab_size]
    exact = logits.double().softmax(-1)
    assert [position.id for position in view.positions] == ids
    assert view.positions[0].probability is view.positions[0].entropy is None
    for position, told in zip(view.positions[1:], exact[:-1], strict=True):
        assert position.probability == pytest.approx(float(told[position.id]), abs=1e-5)
        assert position.logprob == pytest.approx(math.log(told[position.id]), abs=1e-4)
        assert position.rank == 1 + int((told > told[position.id]).sum())
        assert position.entropy == pytest.approx(-float((told * told.log2()).sum()), abs=1e-4)
        best = told.topk(5)
        assert [other.id for other in position.top] == best.indices.tolist()
        assert [other.probability for other in position.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_they_are_the_log_probabilities_that_generate_reports(llm: LLM) -> None:
    view, output = looked_at(llm, SamplingParams(seed=5, max_tokens=12, ignore_eos=True, logprobs=5))
    assert output.logprobs is not None
    for position, told in zip(view.positions[COUNT:], output.logprobs, strict=True):
        assert position.logprob == pytest.approx(told[position.id].logprob, abs=1e-6)
        assert position.rank == told[position.id].rank
        for other in position.top:
            assert math.log(other.probability) == pytest.approx(told[other.id].logprob, abs=1e-6)


SAMPLING = [
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.8, seed=1, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1.5, min_p=0.05, seed=2, max_tokens=6, min_tokens=6),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, seed=3, max_tokens=9),
    SamplingParams(logit_bias={65: 8.0, 66: 8.0}, temperature=0.9, seed=4, max_tokens=6),
    SamplingParams(structured_outputs=StructuredOutputsParams(regex="[ab]{7}"), seed=5, max_tokens=7),
]


@pytest.mark.parametrize("params", SAMPLING, ids=range(len(SAMPLING)))
def test_the_sampling_probability_is_the_share_of_draws(llm: LLM, params: SamplingParams) -> None:
    """The engine itself is asked many times for the next token, from the same point on, with other seeds."""
    view, output = looked_at(llm, params)
    answer = view.positions[COUNT:]
    assert [position.id for position in answer] == output.token_ids
    assert all(p.sampling_probability is None for p in view.positions[:COUNT])
    assert all(0.0 < (p.sampling_probability or 0.0) <= 1.0 for p in answer)
    draws = 300
    again = [
        SamplingParams(**{**vars(params), "seed": 1000 + i, "max_tokens": 1, "min_tokens": 0}) for i in range(draws)
    ]
    firsts = [o.outputs[0].token_ids[0] for o in llm.generate([PROMPT] * draws, again, progress=False)]
    expected = answer[0].sampling_probability or 0.0
    spread = math.sqrt(max(expected * (1 - expected), 1e-9) / draws)
    assert abs(firsts.count(answer[0].id) / draws - expected) < 4.5 * spread


def test_the_sampling_probability_follows_penalties_through_the_answer(llm: LLM) -> None:
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.7, seed=3, max_tokens=12, ignore_eos=True)
    view, output = looked_at(llm, SamplingParams(**{**vars(params), "logprobs": 0}))
    assert output.logprobs is not None
    for position, told in zip(view.positions[COUNT:], output.logprobs, strict=True):
        # At temperature 1 without filters, what is reported after penalties is what is drawn from.
        assert math.log(position.sampling_probability or 0.0) == pytest.approx(told[position.id].logprob, abs=1e-5)


def test_a_cached_prefix_has_no_probabilities_and_the_rest_has_the_same(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    whole, _ = looked_at(llm, params, cache_salt="prefix")
    rest, _ = looked_at(llm, params, cache_salt="prefix")
    assert [p.id for p in rest.positions] == [p.id for p in whole.positions]
    known = [p for p in rest.positions if p.probability is not None]
    assert 5 <= len(known) < len(rest.positions)
    for position in known:
        assert position.probability == pytest.approx(whole.positions[position.position].probability, rel=1e-5)
    assert rest.positions[-1].sampling_probability == 1.0


def test_pieces_of_rows_change_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with trace(llm, residuals=True) as seen:
        llm.generate(PROMPT, SamplingParams(seed=1, max_tokens=5), cache_salt="pieces")
    whole = probabilities(seen)
    monkeypatch.setattr(distributions, "CHUNK_VALUES", 3 * llm.config.vocab_size)
    assert np.allclose(
        [p.probability for p in probabilities(seen).positions[1:]], [p.probability for p in whole.positions[1:]]
    )


def test_an_id_without_a_token_has_no_probability(llm: LLM) -> None:
    ids = [65, llm.config.vocab_size - 1, 66]
    with trace(llm, residuals=True) as seen:
        llm.generate([ids], SamplingParams(temperature=0.0, max_tokens=1))
    strange = probabilities(seen).positions[1]
    assert (strange.text, strange.probability, strange.rank) == ("<no token>", None, None)
    assert strange.entropy is not None
    probabilities(seen)._repr_html_()


def test_data_is_plain_and_says_what_generate_did(llm: LLM) -> None:
    view, _ = looked_at(llm, SamplingParams(seed=1, max_tokens=5, ignore_eos=True))
    data = json.loads(json.dumps(view.data(), allow_nan=False))
    assert set(data) == {"positions", "what_if"}
    assert data["positions"][0]["probability"] is None
    last = data["positions"][-1]
    assert set(last) >= {"position", "id", "text", "probability", "logprob", "rank", "entropy", "top"}
    assert 0 < last["sampling_probability"] <= 1


def test_the_most_uncertain_positions_of_the_answer(llm: LLM) -> None:
    view, _ = looked_at(llm, SamplingParams(seed=1, max_tokens=8, ignore_eos=True))
    found = view.most_uncertain(3)
    entropies = {p.position: p.entropy or 0.0 for p in view.positions[COUNT:]}
    assert sorted(entropies.values(), reverse=True)[:3] == [entropies[p] for p in found]
    here = view.positions[found[0]]
    assert here.id not in view.others(found[0], 4)
    assert len(view.others(found[0], 4)) == 4


def test_page_and_drawing_show_the_numbers(llm: LLM, tmp_path: Path) -> None:
    prompt = "x<script>alert(1)</script>$x^$"
    with trace(llm, residuals=True) as seen:
        llm.generate(prompt, SamplingParams(seed=1, max_tokens=40, ignore_eos=True), raw_special=True)
    view = probabilities(seen)
    page = view._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert f"{view.positions[1].probability:.4g}" in page
    assert len(view.figure().axes) == 2 * 2  # two rows, each with an axis for the entropy
    view.save(tmp_path / "probabilities.png")


def test_what_cannot_be_looked_at_is_refused(llm: LLM) -> None:
    with trace(llm) as seen:
        llm.generate("a", SamplingParams(max_tokens=1))
    with pytest.raises(SettingError, match="residuals was not kept"):
        probabilities(seen)
    with pytest.raises(SettingError, match="top = -1"):
        probabilities(seen, top=-1)
