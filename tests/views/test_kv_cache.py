"""Blocks over time: what the engine's own tables say, and what the rules of `BlockPool` give when followed by hand."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from qwill import LLM, SamplingParams
from qwill.errors import UsageError
from qwill.tracing import ShareRecord, StepRecord, Trace, trace
from qwill.views.kv_cache import KVCacheView, kv_cache

BLOCK_BYTES = 2 * 3 * 16 * 2 * 16 * 4  # keys and values, layers, tokens, heads, head_dim, fp32


def small(model: Path, blocks: int, **settings: Any) -> LLM:
    """The tiny model with a cache of so many blocks."""
    return LLM(model, dtype="float32", max_model_len=80, threads=1, kv_memory=blocks * BLOCK_BYTES, **settings)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def tables(step: dict[str, Any]) -> dict[str, list[int]]:
    return {share["request"]: share["blocks"] for share in step["shares"]}


def test_shared_prefixes_by_hand(tiny_chat_model: Path) -> None:
    """The first text fills blocks 0 to 3. Of the second, 50 tokens are there already, three blocks of them whole; of
    the third 40, two blocks whole. What follows within a block is copied to the middle of the longest empty run.
    """
    ids = list(range(10, 60))
    with small(tiny_chat_model, 12) as llm, trace(llm) as seen:
        llm.generate(ids, greedy(4), request_id="first")
        llm.generate([[*ids, 1, 2, 3], ids[:40] + [7] * 20, [5] * 33], greedy(2))
    data = kv_cache(seen).data()
    assert (data["block_size"], data["num_blocks"]) == (16, 12)
    assert data["requests"] == [
        {"id": "first", "letter": "A", "prompt_tokens": 50, "cached_tokens": 0},
        {"id": "0", "letter": "B", "prompt_tokens": 53, "cached_tokens": 50},
        {"id": "1", "letter": "C", "prompt_tokens": 60, "cached_tokens": 40},
        {"id": "2", "letter": "D", "prompt_tokens": 33, "cached_tokens": 0},
    ]
    assert [tables(step) for step in data["steps"]] == [
        *[{"first": [0, 1, 2, 3]}] * 4,
        *[{"0": [0, 1, 2, 8], "1": [0, 1, 6, 7], "2": [10, 11, 5]}] * 2,
    ]
    step = data["steps"][4]
    assert [(share["start"], share["count"]) for share in step["shares"]] == [(50, 3), (40, 20), (0, 33)]
    assert step["copies"] == [[3, 8, 2], [2, 6, 8]]
    assert step["shared"] == [0, 1]
    assert (step["in_use"], step["free"], step["elsewhere"], step["cached"]) == (9, 3, 0, 4)
    assert data["blocks"] == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]


def test_preemption_by_hand(tiny_chat_model: Path) -> None:
    """Six blocks for two texts of up to 59 tokens: the second gives its blocks back until the first has ended, and
    finds two of three again.
    """
    with small(tiny_chat_model, 6) as llm, trace(llm) as seen:
        llm.generate([list(range(10, 40)), list(range(110, 140))], greedy(30))
        assert llm.stats.preemptions == 1
    found = [tables(step) for step in kv_cache(seen).data()["steps"]]
    assert found == [
        *[{"0": [0, 1], "1": [4, 5]}] * 3,
        *[{"0": [0, 1, 2], "1": [4, 5, 3]}] * 16,
        *[{"0": [0, 1, 2, 3]}] * 11,
        *[{"1": [4, 5, 3, 2]}] * 11,
    ]


@pytest.mark.parametrize("settings", [{}, {"speculative": "prompt_lookup"}, {"max_batch_tokens": 8}], ids=str)
def test_at_each_step_the_blocks_are_those_that_the_model_was_given(
    settings: dict[str, Any], tiny_chat_model: Path
) -> None:
    given: list[list[list[int]]] = []
    with small(tiny_chat_model, 14, **settings) as llm, trace(llm) as seen:
        model = llm.service.between_steps(lambda engine: engine.runner.model)
        hook = model.register_forward_pre_hook(lambda _, inputs: given.append(inputs[1].block_tables.tolist()))
        llm.generate(["abc abc abc abc abc abc abc", "abc abc abc abc abc xyz", "The rest."], greedy(40))
        hook.remove()
        drafted = llm.stats.drafted_tokens
    data = kv_cache(seen).data()
    assert len(data["steps"]) == len(given)
    assert (drafted > 0) == ("speculative" in settings)
    assert sum(share["num_drafts"] for step in data["steps"] for share in step["shares"]) == drafted
    for step, rows in zip(data["steps"], given, strict=True):
        for share, row in zip(step["shares"], rows, strict=True):
            assert row[: len(share["blocks"])] == share["blocks"]
            need = -(-(share["start"] + share["count"] + share["num_drafts"]) // 16)
            kept = len(share["blocks"]) - need  # for guesses that turned out wrong
            assert 0 <= kept <= ("speculative" in settings)
        assert step["in_use"] + step["free"] == 14
        assert step["elsewhere"] >= 0


def test_blocks_of_a_request_that_waits_for_its_turn_are_counted() -> None:
    share = ShareRecord("a", 0, 8, 0, 0, (0, 1), 0, 40)
    step = StepRecord(0, 0.0, 0.1, (share,), num_blocks=10, free_blocks=5, cached_blocks=0, copies=())
    [found] = KVCacheView(16, (step,)).data()["steps"]
    assert (found["in_use"], found["elsewhere"]) == (5, 3)


@pytest.fixture
def crowded() -> KVCacheView:
    """Thirty requests with names that do harm where they can; all share block 3."""
    name = "<script>$x_$\x1b[31m\u202e你好"
    shares = [ShareRecord(f"{name}{i}", 20, 1, 0, 1, (3, 40 + i), 16 if i else 0, 20) for i in range(30)]
    steps = [
        StepRecord(i, float(i), 0.5, tuple(shares[: 1 + i]), 100, 100 - i, 7, copies=((3, 40, 5),) if i == 2 else ())
        for i in range(30)
    ]
    return KVCacheView(16, tuple(steps))


def test_the_picture_is_drawn_without_a_warning_whatever_the_requests_are_called(
    crowded: KVCacheView, tmp_path: Path
) -> None:
    for suffix in (".png", ".svg", ".json"):
        crowded.save(tmp_path / f"cache{suffix}")
    assert ET.parse(tmp_path / "cache.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "cache.json").read_text(encoding="utf-8")) == crowded.data()
    texts = [text.get_text() for axes in crowded.figure().axes for text in axes.texts]
    assert "A" in texts  # alone
    assert "A b c" in texts
    assert crowded.letters[crowded.requests[27].request_id] == "B1"


def test_the_html_has_every_block_of_every_step_and_escapes_names(crowded: KVCacheView) -> None:
    page = crowded._repr_html_()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "你好" in page
    assert "Before step 2, the first 5 tokens of block 3 were copied to block 40." in page
    rows = ET.fromstring(page[page.index("<table") : page.index("</table>") + 8]).iter("tr")
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in rows}
    assert cells["step"][:3] == ["0", "1", "2"]
    assert cells["block 3"][:3] == ["A", "A b", "A b c"]
    assert cells["block 42"][:4] == ["·", "·", "C", "C"]
    assert cells["tokens computed"][:3] == ["1", "2", "3"]


def test_steps_in_which_nothing_changes_share_a_column_and_like_blocks_a_row() -> None:
    tables = [(0, 1, 2)] * 3 + [(0, 1, 2, 9)] * 2
    shares = [ShareRecord("a", 40, 1, 0, 1, table, 0, 40) for table in tables]
    steps = [StepRecord(i, 0.0, 0.1, (share,), 10, 6, 0, ()) for i, share in enumerate(shares)]
    page = KVCacheView(16, tuple(steps))._repr_html_()
    table = ET.fromstring(page[page.index("<table") : page.index("</table>") + 8])
    found = [[cell.text for cell in row] for row in table.iter("tr")][:3]
    assert found == [["step", "0–2", "3–4"], ["block 0–2", "A", "A"], ["block 9", "·", "A"]]


def test_a_trace_without_a_step_has_no_picture(tiny_chat_model: Path) -> None:
    with small(tiny_chat_model, 12) as llm, trace(llm) as seen:
        pass
    assert isinstance(seen, Trace)
    with pytest.raises(UsageError, match="no steps"):
        kv_cache(seen)
