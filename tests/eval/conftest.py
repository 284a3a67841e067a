"""Two random models that read the same tokens, and a text for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qwill.eval.texts import EvalText


@pytest.fixture(scope="session")
def other_chat_model(
    tiny_chat_model: Path, tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Another model with the tokenizer and vocabulary of `tiny_chat_model`: other weights, and an untied head."""
    folder = tmp_path_factory.mktemp("other") / "other-chat"
    shutil.copytree(tiny_checkpoint("qwen3-untied"), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_chat_model / name, folder / name)
    return folder


@pytest.fixture
def text() -> EvalText:
    """171 tokens of one byte each."""
    return EvalText(
        "lines.txt", "0" * 64, "".join(f"{n} bottles of ink, {n * n} quills.\n" for n in range(6, 12))[:171]
    )
