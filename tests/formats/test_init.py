"""`open_checkpoint`: which reader a path gets, and paths that no reader takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import FormatError, ModelNotFoundError
from qwill.formats import open_checkpoint


def test_each_kind_of_path_gets_its_reader(tmp_path: Path, valid_gguf: bytes, valid_safetensors: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(valid_gguf)
    (tmp_path / "model.safetensors").write_bytes(valid_safetensors)
    (tmp_path / "X.GGUF").write_bytes(valid_gguf)
    assert open_checkpoint(tmp_path / "x.gguf").format == "gguf"
    assert open_checkpoint(tmp_path / "X.GGUF").format == "gguf"
    assert open_checkpoint(tmp_path / "model.safetensors").format == "safetensors"
    assert open_checkpoint(tmp_path).path == tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", ["gone", "gone.gguf", "gone.safetensors", "Qwen/Qwen3-0.6B"])
def test_path_that_is_not_there_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_weights_are_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(FormatError, match="convert to safetensors"):
        open_checkpoint(tmp_path / name)


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("x")
    with pytest.raises(FormatError, match=r"neither a \.gguf nor a \.safetensors"):
        open_checkpoint(tmp_path / "README.md")


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors"])
def test_empty_file_folder_and_other_format_under_the_name_are_refused(
    tmp_path: Path, suffix: str, valid_gguf: bytes, valid_safetensors: bytes
) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="the file is empty"):
        open_checkpoint(path)
    path.write_bytes(valid_safetensors if suffix == ".gguf" else valid_gguf)
    with pytest.raises(FormatError):
        open_checkpoint(path)


def test_readers_import_neither_torch_nor_the_reference_packages() -> None:
    code = (
        "import sys, qwill.formats.dequantize; "
        "print([m for m in ('torch', 'transformers', 'safetensors', 'gguf') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done: Any = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
