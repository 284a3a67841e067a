"""One layer and one head in larger pictures."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.tracing import trace
from qwill.views.attention import Attention, attention

HOSTILE = "<script>alert(1)</script> $x$ 你好"


@pytest.fixture(scope="module")
def view(chat_folder: Callable[[str], Path]) -> Attention:
    folder, full = chat_folder("qwen3-odd-heads"), {"dtype": "float32", "max_model_len": 256, "threads": 1}
    with LLM(folder, **full) as llm, trace(llm, attention=True) as seen:
        llm.generate(HOSTILE, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    return attention(seen)


def test_a_layer_holds_its_part_of_the_whole(view: Attention, tmp_path: Path) -> None:
    whole, part = view.data(), view.layer(1).data()
    assert part["map"] == whole["maps"][1]
    assert part["summary"] == whole["summary"][1]
    assert (part["layer"], part["texts"], part["grid"]) == (1, whole["texts"], whole["grid"])
    view.layer(1).save(tmp_path / "layer.png")
    assert "layer 1" in view.layer(1)._repr_html_()


def test_a_head_has_the_row_of_its_query(view: Attention, tmp_path: Path) -> None:
    head = view.head(2, 7, position=20)
    head.save(tmp_path / "head.json")
    data = json.loads((tmp_path / "head.json").read_text(encoding="utf-8"))
    weights = view.weights(2)[7]
    assert data["kv_head"] == 7 // 3
    np.testing.assert_allclose(data["weights"], weights[20, :21].numpy(), rtol=1e-6)
    order = weights[20, :21].argsort(descending=True)[:8].tolist()
    assert [one["position"] for one in data["top"]] == order
    assert [one["text"] for one in data["top"]] == [view.texts[position] for position in order]
    torch.testing.assert_close(torch.tensor(data["after"]).softmax(0), weights[20, :21])
    before = view.request.keys(2, rotated=False)[:21, 2] @ view.request.queries(2, rotated=False)[20, 7] / 6**0.5
    torch.testing.assert_close(torch.tensor(data["before"]), before)
    shape = (data["grid"], data["grid"])
    picture = np.frombuffer(zlib.decompress(base64.b64decode(data["map"])), np.uint8).reshape(shape)
    assert (picture == np.round(255 * np.sqrt(weights.numpy()))).all()


def test_without_a_position_it_is_the_end_of_the_prompt(view: Attention) -> None:
    assert view.head(0, 0).position == len(HOSTILE.encode()) - 1


def test_a_head_shows_its_strongest_keys_and_no_markup_of_the_text(view: Attention, tmp_path: Path) -> None:
    head = view.head(0, 14)
    page = head._repr_html_()
    assert "head 14 (KV head 4)" in page
    assert page.count("<tr>") == 1 + len(head.top())
    assert "<script" not in page
    head.save(tmp_path / "head.png")
    view.head(0, 0, position=0).save(tmp_path / "first.svg")  # a query that sees itself only
