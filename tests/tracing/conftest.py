"""A small model that is traced in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qwill import LLM


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[LLM]:
    with LLM(tiny_chat_model, dtype="float32", max_model_len=512, threads=1) as llm:
        yield llm
