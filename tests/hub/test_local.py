"""Models given by a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qwill.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from qwill.hub import pull, resolve


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"{}")
    return folder


def test_a_folder_with_safetensors(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "config.json", "model.safetensors")
    found = resolve(str(folder))
    assert (found.path, found.source, found.revision) == (folder, "local", None)
    assert pull(str(folder)) == found


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    file = make(tmp_path / "m", "x.gguf") / "x.gguf"
    assert resolve(str(file)).path == file
    assert resolve(str(file.parent)).path == file


def test_several_gguf_files_must_be_chosen_from(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "a.gguf", "b.gguf")
    with pytest.raises(UsageError, match=r"2 \.gguf files[\s\S]*a\.gguf"):
        resolve(str(folder))


def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"missing: config\.json, model\.safetensors"):
        resolve(str(tmp_path))
    make(tmp_path, "config.json")
    with pytest.raises(ModelNotFoundError, match=r"missing: model\.safetensors"):
        resolve(str(tmp_path))


def test_a_path_that_does_not_exist_suggests_a_neighbour(tmp_path: Path) -> None:
    make(tmp_path / "qwen3-tiny", "config.json")
    with pytest.raises(ModelNotFoundError, match=r"does not exist[\s\S]*qwen3-tiny"):
        resolve(str(tmp_path / "qwen3-tini"))
    with pytest.raises(ModelNotFoundError, match="give org/name"):
        resolve("/no/such/folder/at/all")


def test_what_is_neither_file_nor_folder_is_called_by_its_name(tmp_path: Path) -> None:
    pipe, circle = tmp_path / "pipe.gguf", tmp_path / "circle.gguf"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    for path, text in ((pipe, "is neither a file nor a folder, but a pipe"), (circle, "is a link that leads nowhere")):
        with pytest.raises(ModelNotFoundError, match=text) as error:
            resolve(str(path))
        assert "did you mean" not in error.value.hint


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path, "model.bin") / "model.bin"
    with pytest.raises(UsageError, match=r"not a \.gguf file"):
        resolve(str(file))


def test_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="pickle"):
        resolve(str(make(tmp_path, "config.json", "pytorch_model.bin")))
