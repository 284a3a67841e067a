"""Tiny models on disk for the benchmarks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture(scope="session")
def tiny_talker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template."""
    folder = tmp_path_factory.mktemp("talker") / "qwen3-tiny"
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
