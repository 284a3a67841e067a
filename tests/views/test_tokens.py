"""Tokens with bytes and ids, whatever they are made of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwill import LLM, SamplingParams
from qwill.errors import SettingError
from qwill.inspect import tokens, trace

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
TEXT = "a 你<script>alert(1)</script>🙂\u202eabc$x^$é\n"


class Page(HTMLParser):
    """What a browser would make of a page: its elements and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_text_is_its_tokens(llm: LLM) -> None:
    view = tokens(llm, TEXT, parse_special=True)
    listed = view.data()["tokens"]
    assert [token["id"] for token in listed] == llm.tokenizer.encode(TEXT, parse_special=True)
    assert bytes.fromhex("".join(token["bytes"] for token in listed)) == TEXT.encode()
    assert [token["position"] for token in listed] == list(range(len(listed)))
    assert {token["part"] for token in listed} == {"prompt"}
    by_text = {token["text"]: token for token in listed}
    assert by_text["你"]["special"]
    assert not by_text["a"]["special"]
    assert by_text["<U+202E>abc"]["bytes"] == "e280ae616263"
    json.dumps(view.data(), allow_nan=False)


def test_the_tokens_of_a_character_stand_together(llm: LLM) -> None:
    listed = tokens(llm, "x你é").data()["tokens"]
    assert [token["text"] for token in listed] == ["x", "<0xE4>", "<0xBD>", "<0xA0>", "<0xC3>", "<0xA9>"]
    assert [token["partial"] for token in listed] == [False, True, True, True, True, True]
    assert [token["group"] for token in listed] == [0, 1, 1, 1, 4, 4]
    assert [token["character"] for token in listed] == [None, "你", "你", "你", "é", "é"]


def test_a_traced_request_has_prompt_and_answer(llm: LLM) -> None:
    with trace(llm) as seen:
        output = llm.generate("To 你", GREEDY)[0]
    listed = tokens(seen).data()["tokens"]
    assert [token["id"] for token in listed] == [*output.prompt_token_ids, *output.outputs[0].token_ids]
    assert [token["part"] for token in listed] == ["prompt"] * 6 + ["answer"] * 4


def test_ids_may_be_given_and_need_no_token(llm: LLM) -> None:
    last = llm.config.vocab_size - 1
    view = tokens(llm.tokenizer, [65, last, 66], num_prompt_tokens=1)
    listed = view.data()["tokens"]
    assert [(token["text"], token["bytes"]) for token in listed] == [("b", "62"), ("<no token>", ""), ("c", "63")]
    assert [token["part"] for token in listed] == ["prompt", "answer", "answer"]
    assert "<no token>" in Page(view._repr_html_()).text


def test_the_page_shows_hostile_tokens_as_text(llm: LLM) -> None:
    page = Page(tokens(llm, TEXT, parse_special=True)._repr_html_())
    assert page.elements == {"figure", "figcaption", "b", "span", "style", "div", "bdi"}
    for text in ("<script>alert(1)</script>", "<U+202E>abc", "$x^$", "e2 80 ae", "🙂", "special", "= é"):
        assert text in page.text
    assert "\u202e" not in page.text


def test_every_token_is_drawn(llm: LLM, tmp_path: Path) -> None:
    view = tokens(llm, TEXT * 9, parse_special=True)
    shown = [text.get_text() for text in view.figure().axes[0].texts]
    for token in view.tokens:
        assert str(token.id) in shown
    assert shown.count("= é") == 9
    view.save(tmp_path / "tokens.png")
    assert "<script" not in view.svg()


def test_what_is_not_one_text_is_refused(llm: LLM) -> None:
    with pytest.raises(SettingError, match="no text"):
        tokens(llm)
    with trace(llm) as seen:
        llm.generate(["a", "b"], GREEDY)
    with pytest.raises(SettingError, match="2 requests"):
        tokens(seen)
    with pytest.raises(SettingError, match="texts already"):
        tokens(seen, "a")


def test_ids_of_numpy_are_ids(llm: LLM) -> None:
    view = tokens(llm, np.array([65, 66]))  # type: ignore[arg-type]  # not a Sequence, and given all the same
    assert json.loads(json.dumps(view.data())) == tokens(llm, [65, 66]).data()
