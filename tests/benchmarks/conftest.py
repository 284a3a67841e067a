"""A tiny model on disk for the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwill.bench.random_model import write_random_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Qwen3 with 512 tokens and 2 layers."""
    folder = tmp_path_factory.mktemp("benchmarks") / "qwen3-tiny"
    write_random_model(folder, "qwen3-tiny")
    return folder
