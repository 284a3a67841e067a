"""What is measured, as found on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from qwill.bench.target import Target, find_target
from qwill.errors import BenchmarkError, ModelNotFoundError
from qwill.hub.progress import SilentProgress
from qwill.settings import EngineSettings


def find(model: Path | str, prompt_tokens: int = 8, new_tokens: int = 4, **engine: Any) -> Target:
    size = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "count": 4}
    return find_target(str(model), EngineSettings(**engine), SilentProgress(), **size)


def changed(tiny_model: Path, folder: Path, **config: Any) -> Path:
    shutil.copytree(tiny_model, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return folder


def test_the_setup_is_what_was_asked_for(tiny_model: Path) -> None:
    setup = find(tiny_model, 30, 12, threads=3, dtype="float32").setup
    assert (setup.path, setup.dtype, setup.threads, setup.max_model_len) == (str(tiny_model), "float32", 3, 42)
    assert find(tiny_model, max_model_len=100).setup.max_model_len == 100


def test_the_number_format_is_the_checkpoints_own_except_float16(tiny_model: Path, tmp_path: Path) -> None:
    assert find(tiny_model).setup.dtype == "bfloat16"
    assert find(changed(tiny_model, tmp_path / "half", torch_dtype="float16")).setup.dtype == "float32"
    assert find(tiny_model, dtype="float16").setup.dtype == "float16"


def test_weights_read_per_token_are_all_but_an_untied_embedding(tiny_model: Path, tmp_path: Path) -> None:
    file_bytes = (tiny_model / "model.safetensors").stat().st_size
    tied = find(tiny_model)
    assert tied.weight_bytes == tied.parameters * 2 == tied.file_weight_bytes
    assert file_bytes - 8192 < tied.weight_bytes < file_bytes
    assert find(tiny_model, dtype="float32").weight_bytes == 2 * tied.weight_bytes
    untied = find(changed(tiny_model, tmp_path / "untied", tie_word_embeddings=False))
    assert untied.parameters == tied.parameters + 512 * 64
    assert untied.weight_bytes == tied.weight_bytes


def test_work_that_does_not_fit_into_the_context_is_refused(tiny_model: Path) -> None:
    find(tiny_model, 40_000, 960)
    with pytest.raises(BenchmarkError, match="do not fit"):
        find(tiny_model, 40_000, 961)
    with pytest.raises(BenchmarkError, match="do not fit"):
        find(tiny_model, 8, 4, max_model_len=11)


def test_only_the_cpu_is_measured(tiny_model: Path) -> None:
    find(tiny_model, device="cpu")
    with pytest.raises(BenchmarkError, match="on the CPU, not on cuda"):
        find(tiny_model, device="cuda")


def test_an_unknown_random_model_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match=r"qwen3-0\.6b"):
        find("random:qwen9")
