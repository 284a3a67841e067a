"""The attention picture: what its data hold is what the model does, and what `transformers` says that it does."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.errors import CapacityError, SettingError
from qwill.tracing import Trace, trace
from qwill.views import attention as module
from qwill.views.attention import attention

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = "Shall I compare thee to a summer's day? 你好 🙂 <b>"
FULL: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "threads": 1}


def traced(folder: Path, prompt: str = PROMPT) -> Trace:
    with LLM(folder, **FULL) as llm, trace(llm, attention=True) as seen:
        llm.generate(prompt, GREEDY)
    return seen


def unpacked(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def strongest_of(data: dict[str, Any], layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights (Hq, T, k), as the report unpacks them."""
    raw = zlib.decompress(base64.b64decode(data["top"]["layers"][layer]))
    shape = (data["num_heads"], data["num_tokens"] - data["first"], data["top"]["k"])
    count = int(np.prod(shape))
    places = np.frombuffer(raw[: 2 * count], "<u2").reshape(shape)
    return places, (np.frombuffer(raw[2 * count :], np.uint8).reshape(shape) / 255.0) ** 2


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-odd-heads", "qwen3-one-kv-head", "qwen2", "qwen3-yarn", "llama"])
def test_the_data_are_the_attention_of_transformers(
    kind: str, chat_folder: Callable[[str], Path], hf_model: Callable[..., Any]
) -> None:
    seen = traced(chat_folder(kind))
    data = attention(seen).data()
    official = hf_model(chat_folder(kind))
    official.set_attn_implementation("eager")
    with torch.no_grad():
        told = official(torch.tensor([seen.request().token_ids]), output_attentions=True).attentions
    heads, tokens, position = data["num_heads"], data["num_tokens"], data["qk"]["position"]
    assert (data["grid"], data["first"], data["num_layers"]) == (tokens, 0, len(told))
    assert position == len(PROMPT.encode()) - 1
    for layer, theirs in enumerate(told):
        weights = theirs[0].double().numpy()
        maps = (unpacked(data["maps"][layer], np.uint8).reshape(heads, tokens, tokens) / 255.0) ** 2
        assert (np.abs(maps - weights) <= 0.004 * np.sqrt(weights) + 2e-5).all()
        places, found = strongest_of(data, layer)
        at = np.take_along_axis(weights, places.astype(int), -1)
        assert (np.abs(at - found) <= 0.004 * np.sqrt(at) + 2e-5)[:, data["top"]["k"] :].all()
        np.testing.assert_allclose(at[:, 9:], -np.sort(-weights[:, 9:], axis=-1)[..., :8], atol=1e-5)
        products = unpacked(data["qk"]["layers"][layer], "<f2").reshape(2, heads, position + 1).astype(np.float64)
        row = np.exp(products[1] - products[1].max(-1, keepdims=True))
        row /= row.sum(-1, keepdims=True)
        np.testing.assert_allclose(row, weights[:, position, : position + 1], atol=5e-3)


def test_scores_before_the_rotation_are_products_of_what_was_not_rotated(
    chat_folder: Callable[[str], Path], hf_model: Callable[..., Any]
) -> None:
    """Held against the official projections and norms, with the key head of each query head written out."""
    folder = chat_folder("qwen3-odd-heads")
    view = attention(traced(folder))
    official, inside = hf_model(folder), {}
    block = official.model.layers[1].self_attn
    block.q_norm.register_forward_hook(lambda _m, _i, out: inside.__setitem__("q", out[0]))
    block.k_norm.register_forward_hook(lambda _m, _i, out: inside.__setitem__("k", out[0]))
    with torch.no_grad():
        official(torch.tensor([view.request.token_ids]))
    before, after = view.scores(1, 20)
    for head in range(15):
        expected = inside["k"][:21, head // 3] @ inside["q"][20, head] / 6**0.5
        torch.testing.assert_close(before[head], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(after.softmax(-1), view.weights(1)[:, 20, :21])
    torch.testing.assert_close(before[:, 20], after[:, 20])  # no distance, no difference


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-yarn"])
def test_what_came_from_the_prefix_cache_is_turned_back(kind: str, chat_folder: Callable[[str], Path]) -> None:
    with LLM(chat_folder(kind), **FULL) as llm:
        with trace(llm, attention=True) as whole:
            llm.generate(PROMPT, GREEDY)
        with trace(llm, attention=True) as rest:
            llm.generate(PROMPT + " and more", GREEDY)
    view, complete = attention(rest), attention(whole)
    assert 16 <= view.request.first <= len(PROMPT.encode())
    data = view.data()
    assert data["first"] == view.request.first
    assert data["num_tokens"] == len(data["texts"]) == len(view.request.token_ids)
    first = view.request.first
    query = view.request.queries(1, rotated=False)[0]  # (Hq, D)
    keys = complete.request.keys(1, rotated=False)[:first].repeat_interleave(3, dim=1)  # (first, Hq, D)
    before, after = view.scores(1, first)
    torch.testing.assert_close(before[:, :first], (keys * query).sum(-1).T / 4.0, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(after.softmax(-1), view.weights(1)[:, 0, : first + 1])
    with pytest.raises(SettingError, match="not computed"):
        view.scores(0, view.request.first - 1)


def test_a_trace_that_began_within_the_answer_shows_its_first_query(chat_folder: Callable[[str], Path]) -> None:
    with LLM(chat_folder("qwen3"), **FULL) as llm:
        stream = llm.stream(PROMPT, GREEDY)
        for _ in range(3):
            next(stream)
        with trace(llm, attention=True) as seen:
            list(stream)
    view = attention(seen)
    first = view.request.first
    assert first > view.request.num_prompt_tokens
    assert view.data()["qk"]["position"] == first
    torch.testing.assert_close(view.scores(1)[1].softmax(-1), view.weights(1)[:, 0, : first + 1])


def test_a_long_text_has_a_map_of_64_squares(chat_folder: Callable[[str], Path]) -> None:
    seen = traced(chat_folder("qwen3"), PROMPT * 3)
    view = attention(seen)
    data = view.data()
    tokens = data["num_tokens"]
    assert tokens > 128
    assert data["grid"] == 64
    maps = unpacked(data["maps"][0], np.uint8).reshape(6, 64, 64)
    assert maps[:, 0, 0].min() == 255  # the first token has no choice
    assert maps.max(axis=0)[5, 40] == 0
    weights = view.weights(0).numpy()
    top, bottom = 30 * tokens // 64, -(-31 * tokens // 64)
    largest = weights[2, top:bottom, : -(-tokens // 64)].max()
    assert maps[2, 30, 0] == round(255 * float(np.sqrt(largest)))


def test_texts_are_visible_and_harmless(chat_folder: Callable[[str], Path], tmp_path: Path) -> None:
    view = attention(traced(chat_folder("qwen3")))
    view.save(tmp_path / "attention.png")
    view.save(tmp_path / "attention.json")
    data = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    assert data["texts"][:6] == ["S", "h", "a", "l", "l", "·"]
    assert "<0xE4>" in data["texts"]
    assert data["summary"][0][0].keys() >= {"entropy", "first_token", "previous_token", "distance", "kind"}
    assert "KV" in view.caption or "keys and values" in view.caption
    assert "<svg" in view._repr_html_()


def test_what_was_not_kept_or_is_not_there_is_told(
    chat_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = chat_folder("qwen3")
    with LLM(folder, **FULL) as llm, trace(llm) as bare:
        llm.generate("a", GREEDY)
    with pytest.raises(SettingError, match="attention was not kept"):
        attention(bare)
    view = attention(traced(folder))
    for layer, head in ((3, 0), (-1, 0), (0, 6), (0, -1)):
        with pytest.raises(SettingError, match="no such"):
            view.head(layer, head)
    with pytest.raises(SettingError, match="no such layer"):
        view.layer(3)
    with pytest.raises(SettingError, match="position = 999"):
        view.head(0, 0, position=999)
    monkeypatch.setattr(module, "MOST_TOKENS", 20)
    with pytest.raises(CapacityError, match="too much"):
        attention(traced(folder))
