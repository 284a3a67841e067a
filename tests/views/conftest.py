"""A small model that is looked into, whose vocabulary has tokens that would do harm on a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwill import LLM, SamplingParams
from qwill.tracing import Trace, trace

HOSTILE = ["<script>alert(1)</script>", "</td></table>", "&amp;\"'", "\u202eabc", "$x^$", "你", "🙂", "a\u200b\x00b"]
"""Added tokens; the last three stand for what is not hostile but hard."""


@pytest.fixture(scope="session")
def hostile_model(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small chat model with hostile tokens added."""
    from tokenizers import AddedToken, Tokenizer

    folder = tmp_path_factory.mktemp("views") / "hostile"
    shutil.copytree(tiny_chat_model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in HOSTILE])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def llm(hostile_model: Path) -> Iterator[LLM]:
    with LLM(hostile_model, dtype="float32", max_model_len=512, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def seen(llm: LLM) -> Trace:
    """A prompt and seven more tokens, with nothing kept but times."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with trace(llm) as seen:
        llm.generate("To be, or not to be", params)
    return seen
