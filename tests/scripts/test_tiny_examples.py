"""What the tiny model is shown: chats as the template writes them, and labels one token ahead."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from qwill.templates import compile_template
from scripts import tiny_examples
from scripts.tiny_corpus import Document
from scripts.tiny_examples import CHAT_TEMPLATE, NOT_LEARNED, Examples, Passage, chat_text, held_out, train_tokenizer

VOCABULARY = 320


@pytest.fixture(scope="module")
def tokenizer(texts: list[Document]) -> Tokenizer:
    return train_tokenizer(texts, VOCABULARY)


@pytest.fixture(scope="module")
def examples(texts: list[Document], tokenizer: Tokenizer) -> Examples:
    return Examples(held_out(texts)[0], tokenizer, seed=1, chats=0.5)


@pytest.mark.parametrize(
    "text", ["The king's night.\n\nNo!", "明月照高楼🎉", "a\r\n\tb  c 12", "<think>\n\n</think>\n\nI"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_added_tokens_have_the_last_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCABULARY
    found = [tokenizer.token_to_id(token) for token in tiny_examples.SPECIAL_TOKENS]
    assert found == list(range(VOCABULARY - 5, VOCABULARY))


def test_what_is_held_out_is_never_learned(texts: list[Document], examples: Examples) -> None:
    learned, kept = held_out(texts)
    assert [document.name for document in kept] == ["hamlet", "《0》", "《20》"]
    assert len(learned) + len(kept) == len(texts)
    assert not {document.text for document in learned} & {document.text for document in kept}
    stream = examples.tokenizer.decode(examples.stream.tolist(), skip_special_tokens=False)
    assert "HAMLET" not in stream
    assert stream.count("<|endoftext|>") == sum(8 if d.kind == "chinese" else 1 for d in learned)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_chat_is_what_the_template_writes_and_an_answer(thinking: bool, system: bool, count: int) -> None:
    turns = [Passage("play", f"To be {n}", f"or not {n}.") for n in range(count)]
    messages = [{"role": "system", "content": tiny_examples.SYSTEM["play"]}] if system else []
    for turn in turns:
        messages.append({"role": "user", "content": turn.given})
        messages.append({"role": "assistant", "content": "<think>\nhm\n</think>\n\n" + turn.following})
    asked = {"messages": messages[:-1], "add_generation_prompt": True}
    prompt = compile_template(CHAT_TEMPLATE).render(asked | ({} if thinking else {"enable_thinking": False}))
    thought = f"<think>\n{tiny_examples.THOUGHTS['play']}\n</think>\n\n" if thinking else ""
    text = chat_text(turns, system=system, thinking=thinking)
    assert text == f"{prompt}{thought}{turns[-1].following}<|im_end|>\n"


def test_an_answer_is_how_the_text_goes_on(examples: Examples) -> None:
    random_ = random.Random(0)
    for document in examples.documents:
        found = [passage for _ in range(40) if (passage := tiny_examples.passage(document, random_))]
        assert found, document.name
        text = " ".join(document.text.split())
        assert all(" ".join(f"{p.given}\n{p.following}".split()) in text for p in found)
        assert all(len(p.following) <= 200 for p in found)


def test_a_label_is_the_token_after(examples: Examples) -> None:
    inputs, labels = examples.windows(3, 12, 64)
    assert inputs.shape == labels.shape == (12, 64)
    learned = labels[:, :-1] != NOT_LEARNED
    np.testing.assert_array_equal(labels[:, :-1][learned], inputs[:, 1:][learned])


def test_only_the_empty_thought_is_not_learned(examples: Examples) -> None:
    inputs, labels = examples.windows(3, 40, 64)
    rows, places = np.nonzero(labels[:, :-1] == NOT_LEARNED)
    skipped = {examples.tokenizer.id_to_token(i) for i in inputs[rows, places + 1]}
    assert skipped == {"<think>", "ĊĊ", "</think>"} or skipped == {"<think>", "Ċ", "</think>"}


def test_a_steps_windows_depend_on_its_number_and_the_seed(texts: list[Document], tokenizer: Tokenizer) -> None:
    def shown(seed: int, step: int) -> bytes:
        return Examples(texts, tokenizer, seed, 0.5).windows(step, 4, 64)[0].tobytes()

    assert shown(1, 5) == shown(1, 5)
    assert len({shown(1, 5), shown(1, 6), shown(2, 5)}) == 3
