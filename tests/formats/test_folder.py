"""Model folders: which file is opened, index against shards, and that nothing outside the folder is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import FormatError, ModelNotFoundError
from qwill.formats.folder import open_folder

Write = Callable[..., Path]
INDEX = "model.safetensors.index.json"


def shard(write: Write, name: str, *tensors: str) -> Path:
    header = {t: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, t in enumerate(tensors)}
    return write(header, bytes(range(len(tensors))), name=name)


def index(folder: Path, **weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 3}, "weight_map": weight_map}))


@pytest.fixture
def sharded(tmp_path: Path, write_safetensors: Write) -> Path:
    shard(write_safetensors, "model-1.safetensors", "a", "b")
    shard(write_safetensors, "model-2.safetensors", "c")
    index(tmp_path, a="model-1.safetensors", b="model-1.safetensors", c="model-2.safetensors")
    return tmp_path


def test_shards_are_joined(sharded: Path) -> None:
    with open_folder(sharded) as checkpoint:
        assert {name: info.file.name for name, info in checkpoint.tensors.items()} == {
            "a": "model-1.safetensors",
            "b": "model-1.safetensors",
            "c": "model-2.safetensors",
        }
        assert [bytes(checkpoint.raw(name)) for name in "abc"] == [b"\0", b"\1", b"\0"]
        assert checkpoint.path == sharded
        assert len(checkpoint.files) == 2


def test_single_file_goes_before_the_index(sharded: Path, write_safetensors: Write) -> None:
    shard(write_safetensors, "model.safetensors", "only")
    assert list(open_folder(sharded).tensors) == ["only"]


def test_all_missing_shards_are_listed(sharded: Path) -> None:
    index(sharded, a="model-1.safetensors", c="model-7.safetensors", d="model-8.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"2 of the 3 files .*model-7\.safetensors, model-8\.safetensors"):
        open_folder(sharded)


def test_tensor_in_two_shards_is_refused(sharded: Path, write_safetensors: Write) -> None:
    shard(write_safetensors, "model-2.safetensors", "c", "a")
    with pytest.raises(FormatError, match=r"'a' is in two files"):
        open_folder(sharded)


def test_tensor_that_is_not_in_its_shard_is_refused(sharded: Path) -> None:
    index(sharded, a="model-1.safetensors", b="model-1.safetensors", c="model-2.safetensors", d="model-2.safetensors")
    with pytest.raises(FormatError, match=r"1 tensors of the index are not in the files: d \(model-2"):
        open_folder(sharded)


def test_tensor_in_another_shard_than_the_index_says_is_refused(sharded: Path) -> None:
    index(sharded, a="model-1.safetensors", b="model-2.safetensors", c="model-2.safetensors")
    with pytest.raises(FormatError, match=r"1 tensors are in another file than the index says: b"):
        open_folder(sharded)


def test_tensor_that_the_index_does_not_name_is_refused(sharded: Path) -> None:
    index(sharded, a="model-1.safetensors", c="model-2.safetensors")
    with pytest.raises(FormatError, match=r"1 tensors are in the files, but not in the index: b \(model-1"):
        open_folder(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors", "/etc/passwd", "/x.safetensors", "C:\\x.safetensors", "C:x.safetensors", "a/b.safetensors",
        "a\\b.safetensors", "..\\x.safetensors", "..", ".", "", ".hidden.safetensors", "x.safetensors\0", "x.bin",
        "x.safetensors\n", "x" * 300 + ".safetensors", "model\u202e.safetensors", 7, None, ["x.safetensors"],
    ],
)  # fmt: skip
def test_index_may_only_list_plain_names(sharded: Path, name: Any) -> None:
    (sharded.parent / "x.safetensors").write_bytes((sharded / "model-2.safetensors").read_bytes())
    index(sharded, a="model-1.safetensors", b="model-1.safetensors", c=name)
    with pytest.raises(FormatError, match=r"not a plain \.safetensors name"):
        open_folder(sharded)


@pytest.mark.parametrize("linked", ["model-2.safetensors", INDEX, "model.safetensors"])
def test_link_out_of_the_folder_is_refused(sharded: Path, tmp_path_factory: Any, linked: str) -> None:
    outside = tmp_path_factory.mktemp("outside") / "x"
    outside.write_bytes((sharded / "model-2.safetensors").read_bytes())
    (sharded / linked).unlink(missing_ok=True)
    (sharded / linked).symlink_to(outside)
    with pytest.raises(FormatError, match="leads out of the model's folder") as caught:
        open_folder(sharded)
    assert str(outside) in caught.value.where


def test_link_within_the_folder_is_followed(sharded: Path) -> None:
    (sharded / "data").mkdir()
    (sharded / "model-2.safetensors").rename(sharded / "data" / "x")
    (sharded / "model-2.safetensors").symlink_to("data/x")
    assert len(open_folder(sharded).tensors) == 3


@pytest.mark.parametrize("subfolder", ["", "nested/deeper"])
def test_links_of_the_hub_cache_are_followed(sharded: Path, tmp_path_factory: Any, subfolder: str) -> None:
    cache = tmp_path_factory.mktemp("cache")
    repository = cache / "models--org--name"
    snapshot = repository / "snapshots" / "0123abc" / subfolder
    blobs = repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sharded.iterdir()):
        (blobs / f"{i:064x}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{i:064x}", snapshot))
    assert len(open_folder(snapshot).tensors) == 3
    through = cache / "link"
    through.symlink_to(snapshot)  # the folder itself may be reached by any link
    assert len(open_folder(through).tensors) == 3


def test_blobs_that_repositories_share_are_followed(sharded: Path, tmp_path_factory: Any) -> None:
    cache = tmp_path_factory.mktemp("cache")
    snapshot, own, shared = (cache / p for p in ("models--o--n/snapshots/0123abc", "models--o--n/blobs", "blobs/ab"))
    for folder in (snapshot, own, shared):
        folder.mkdir(parents=True)
    for file in sharded.iterdir():
        (shared / f"ab{file.name}").write_bytes(file.read_bytes())
        (own / file.name).symlink_to(f"../../blobs/ab/ab{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert len(open_folder(snapshot).tensors) == 3


def test_link_into_the_blobs_of_another_cache_is_refused(sharded: Path, tmp_path_factory: Any) -> None:
    blobs = tmp_path_factory.mktemp("other") / "blobs"
    blobs.mkdir()
    (sharded / "model-2.safetensors").rename(blobs / "x")
    (sharded / "model-2.safetensors").symlink_to(blobs / "x")
    with pytest.raises(FormatError, match="leads out of the model's folder"):
        open_folder(sharded)


def test_broken_link_and_link_in_a_circle_are_typed_errors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("gone")
    with pytest.raises(ModelNotFoundError):
        open_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(FormatError, match="links cannot be followed"):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["model-2.safetensors", INDEX, "model.safetensors"])
def test_pipe_is_refused_and_does_not_block(sharded: Path, name: str) -> None:
    (sharded / name).unlink(missing_ok=True)
    os.mkfifo(sharded / name)
    with pytest.raises(FormatError, match="not a regular file"):
        open_folder(sharded)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"[]", "does not start with"),
        (b"{}", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": []}', "no weight_map"),
        (b'{"weight_map": {"a": "m.safetensors", "a": "n.safetensors"}}', "'a' appears twice"),
        (b'{"weight_map": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"weight_map": "\xff"}', "not valid UTF-8"),
    ],
)
def test_bad_index_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(FormatError, match=words):
        open_folder(tmp_path)


def test_index_larger_than_100_mb_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(2**33)  # sparse
    with pytest.raises(FormatError, match="at most 100000000"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ([], "the folder is empty"),
        (["config.json"], "is this a model folder"),
        (["config.json", "pytorch_model.bin"], "convert to safetensors"),
        (["consolidated.00.pth"], "convert to safetensors"),
        (["model-00001-of-00002.safetensors"], "pull the model again"),
        (["x-q4_k_m.gguf"], "x-q4_k_m.gguf"),
    ],
)
def test_folder_without_weights_says_what_to_do(tmp_path: Path, names: list[str], hint: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors") as caught:
        open_folder(tmp_path)
    assert hint in caught.value.hint
