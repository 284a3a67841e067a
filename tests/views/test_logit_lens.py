"""The logit lens ends in what the model says, and is what `transformers` gives on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.errors import SettingError
from qwill.inspect import logit_lens, trace
from qwill.tracing import Trace
from qwill.views import distributions

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPT = "Shall I compare 你"
COUNT = len(PROMPT.encode())


@pytest.fixture(scope="module")
def seen(llm: LLM) -> Trace:
    with trace(llm, residuals=True) as seen:
        llm.generate(PROMPT, GREEDY, cache_salt="lens")
    return seen


def test_every_layer_is_the_norm_and_head_of_transformers(
    seen: Trace, hostile_model: Path, hf_model: Callable[..., Any]
) -> None:
    official, request = hf_model(hostile_model), seen.request()
    view = logit_lens(seen)
    with torch.no_grad():
        hidden = official(torch.tensor([request.token_ids]), output_hidden_states=True).hidden_states
        # Its last one is after the norm already.
        normed = [*(official.model.norm(x) for x in hidden[:-1]), hidden[-1]]
        rows = [official.lm_head(x)[0, :, : seen.llm.tokenizer.vocab_size].double().softmax(-1) for x in normed]
    assert len(view.cells) == len(rows) == seen.config.num_layers + 1
    assert view.positions == tuple(range(len(request.token_ids)))
    for layer, row in zip(view.cells, rows, strict=True):
        for position, (cell, exact) in enumerate(zip(layer, row, strict=True)):
            best, final = exact.topk(5), int(rows[-1][position].argmax())
            assert [i for i, _, _ in cell.top] == best.indices.tolist()
            assert [p for _, _, p in cell.top] == pytest.approx(best.values.tolist(), abs=1e-5)
            assert cell.entropy == pytest.approx(-float((exact * exact.log2()).sum()), abs=1e-4)
            assert cell.rank_of_final == 1 + int((exact > exact[final]).sum())
            assert cell.probability_of_final == pytest.approx(float(exact[final]), abs=1e-5)


def test_the_last_row_says_what_was_generated(llm: LLM, seen: Trace) -> None:
    view = logit_lens(seen)
    answer = seen.request().answer_token_ids
    assert [cell.top[0][0] for cell in view.cells[-1][COUNT - 1 :]] == answer
    assert all(cell.rank_of_final == 1 for cell in view.cells[-1])
    assert view.next[COUNT - 1 :] == tuple(cell.top[0][1] for cell in view.cells[-1][COUNT - 1 :])


def test_the_last_row_is_the_logits_to_the_bit_on_native_ops(tiny_chat_model: Path) -> None:
    with LLM(tiny_chat_model, quant="int8", kv_dtype="float32", max_model_len=512, threads=1) as llm:
        with trace(llm, residuals=True) as seen:
            llm.generate(PROMPT, GREEDY)
        ids = seen.request().token_ids
        logits = llm.logits(ids, all_positions=True)[:, : llm.tokenizer.vocab_size].numpy()
        for position, cell in enumerate(logit_lens(seen, top=9).cells[-1]):
            expected = distributions.distribution(logits[position], cell.top[0][0], 9)
            assert [(i, p) for i, _, p in cell.top] == expected.top
            assert cell.entropy == expected.entropy


def test_positions_may_be_chosen_and_are_the_last_64_by_default(llm: LLM) -> None:
    with trace(llm, residuals=True) as seen:
        llm.generate("x" * 90, GREEDY, cache_salt="long")
    assert logit_lens(seen).positions == tuple(range(95 - 64, 95))
    few = logit_lens(seen, positions=[94, 3], top=1)
    assert few.positions == (94, 3)
    assert few.texts[1] == "x"
    assert few.cells[-1][0].top == logit_lens(seen).cells[-1][-1].top[:1]
    with trace(llm, residuals=True) as rest:
        llm.generate("x" * 90, GREEDY, cache_salt="long")
    first = rest.request().first
    assert logit_lens(rest).positions[0] == max(first, 31)
    with pytest.raises(SettingError, match=f"allowed: {first} … 94"):
        logit_lens(rest, positions=[first - 1])


def test_pieces_of_rows_change_nothing(seen: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logit_lens(seen)
    monkeypatch.setattr(distributions, "CHUNK_VALUES", 3 * seen.config.vocab_size)
    for a, b in zip(whole.cells, logit_lens(seen).cells, strict=True):
        assert np.allclose([cell.entropy for cell in a], [cell.entropy for cell in b])


def test_data_page_and_drawing(llm: LLM, tmp_path: Path) -> None:
    with trace(llm, residuals=True) as seen:
        llm.generate("x<script>alert(1)</script>\u202eabc$x^$" * 9, GREEDY, raw_special=True)
    view = logit_lens(seen)
    data = json.loads(json.dumps(view.data(), allow_nan=False))
    assert data["layers"] == [0, 1, 2, 3] == list(range(len(data["cells"])))
    assert set(data["cells"][0][0]) >= {"id", "text", "probability", "entropy", "rank_of_final", "top"}
    assert data["next"][:-1] == data["texts"][1:]
    page = view._repr_html_()
    assert "<script" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<td") == 4 * len(view.positions)
    assert len(view.figure().axes[0].get_xticks()) == 16
    view.save(tmp_path / "lens.svg")


def test_what_cannot_be_looked_at_is_refused(llm: LLM) -> None:
    with trace(llm) as seen:
        llm.generate("a", GREEDY)
    with pytest.raises(SettingError, match="residuals was not kept"):
        logit_lens(seen)
    with pytest.raises(SettingError, match="top = 0"):
        logit_lens(seen, top=0)


def test_positions_of_numpy_are_positions(seen: Trace) -> None:
    view = logit_lens(seen, positions=np.arange(2))  # type: ignore[arg-type]  # not a Sequence, and given all the same
    assert json.loads(json.dumps(view.data())) == logit_lens(seen, positions=[0, 1]).data()


def test_a_lens_without_a_position_is_refused(seen: Trace) -> None:
    with pytest.raises(SettingError, match="no position"):
        logit_lens(seen, positions=[])
