"""Which files are taken from a repository, and which names are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import FormatError, IntegrityError, ModelNotFoundError, UnsupportedModelError
from qwill.hub.files import RemoteFile, check_file_names, gguf_file, gguf_type, missing_files, wanted_files

WHOLE = ["config.json", "tokenizer.json", "model.safetensors"]


def test_weights_come_last_so_that_whole_weights_mean_a_whole_model() -> None:
    names = wanted_files([*reversed(WHOLE), "LICENSE", "generation_config.json", "README.md"], None, "a/b")
    assert names == ["LICENSE", "config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]


def test_vocabulary_files_are_taken_only_without_a_tokenizer_json() -> None:
    assert "vocab.json" not in wanted_files([*WHOLE, "vocab.json", "merges.txt"], None, "a/b")
    names = wanted_files(["config.json", "model.safetensors", "vocab.json", "merges.txt"], None, "a/b")
    assert names == ["config.json", "vocab.json", "merges.txt", "model.safetensors"]


def test_shards_come_after_their_index_and_other_safetensors_are_left() -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (2, 1)]
    index = "model.safetensors.index.json"
    names = wanted_files(["config.json", *shards, index, "consolidated.safetensors", "tokenizer.json"], None, "a/b")
    assert names[-3:] == [index, shards[1], shards[0]]
    assert "consolidated.safetensors" not in names


@given(
    st.sets(st.sampled_from([*WHOLE, "x.bin", "x.pt", "run.py", "x.pkl", "onnx/m.onnx", "tf_model.h5", "README.md"]))
)
@settings(max_examples=100, deadline=None)
def test_code_and_pickles_are_never_wanted(names: set[str]) -> None:
    try:
        wanted = wanted_files(sorted(names | {"config.json"}), None, "a/b")
    except (ModelNotFoundError, UnsupportedModelError):
        return
    assert not any(name.endswith((".bin", ".pt", ".py", ".pkl", ".onnx", ".h5", ".md")) for name in wanted)


def test_safetensors_are_preferred_and_a_lone_gguf_is_taken() -> None:
    assert wanted_files([*WHOLE, "m-Q8_0.gguf"], None, "a/b")[-1] == "model.safetensors"
    assert wanted_files(["m-Q8_0.gguf", "README.md", "LICENSE"], None, "a/b") == ["LICENSE", "m-Q8_0.gguf"]
    assert wanted_files([*WHOLE, "m-Q8_0.gguf"], "q8_0", "a/b") == ["m-Q8_0.gguf"]


def test_an_adapter_or_an_empty_repository_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        wanted_files(["README.md"], None, "a/b")
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        wanted_files(["model.safetensors"], None, "a/b")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-0.6B-UD-Q4_K_XL.gguf", "Q4_K_XL"),
        ("Qwen3-0.6B-BF16.gguf", "BF16"),
        ("model-f16.gguf", "F16"),
        ("Q8_0/Qwen3-8B-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("IQ4_XS/m.IQ4_XS.gguf", "IQ4_XS"),
        ("tiny.gguf", None),
    ],
)
def test_the_type_is_read_from_the_name(name: str, kind: str | None) -> None:
    assert gguf_type(name) == kind


def test_a_gguf_in_parts_is_refused() -> None:
    parts = [f"m-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    with pytest.raises(UnsupportedModelError, match="cut into 2 parts"):
        gguf_file(parts, "Q8_0", "a/b")


def test_two_files_of_one_type_are_listed() -> None:
    with pytest.raises(ModelNotFoundError, match="2 GGUF files of type q8_0"):
        gguf_file(["a-Q8_0.gguf", "b-Q8_0.gguf"], "q8_0", "a/b")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "a/../x",
        "/x",
        "\\x",
        "a\\b",
        "c:x",
        "C:\\x",
        "a//b",
        "",
        ".",
        "./x",
        "a/",
        "a\0b",
        "a\nb",
        "é" * 128,
    ],
)
def test_a_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    with pytest.raises(IntegrityError):
        check_file_names(["config.json", name])


def test_no_remote_file_can_have_such_a_name() -> None:
    with pytest.raises(IntegrityError):
        RemoteFile("../x", 0, "e" * 64, "https://hub.invalid")


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_an_accepted_name_stays_below_its_folder(name: str) -> None:
    try:
        check_file_names([name])
    except IntegrityError:
        return
    target = Path("/base/snapshot", name)
    assert Path("/base/snapshot") in target.parents
    assert ".." not in target.parts


def test_ordinary_names_are_accepted() -> None:
    check_file_names(
        ["config.json", "onnx/model.onnx", "Qwen3-0.6B-Q8_0.gguf", "中文.md", "a b.txt", "..data", "x" * 255]
    )


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(b"{}")
    return folder


def test_a_whole_folder_lacks_nothing(tmp_path: Path) -> None:
    assert missing_files(make(tmp_path, "config.json", "model.safetensors")) == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert missing_files(tmp_path) == ["config.json", "model.safetensors"]
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    make(tmp_path, "config.json", "model-00001-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert missing_files(tmp_path) == ["model-00002-of-00002.safetensors"]


def test_a_link_to_nothing_counts_as_missing(tmp_path: Path) -> None:
    make(tmp_path, "config.json")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    assert missing_files(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}', "[" * 99_999, "\x00"])
def test_a_senseless_index_is_a_format_error(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(FormatError, match="weight_map"):
        missing_files(tmp_path)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a\\b"])
def test_an_index_cannot_point_outside(tmp_path: Path, shard: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(IntegrityError):
        missing_files(tmp_path)


def test_a_huge_index_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors.index.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(FormatError, match="larger than"):
        missing_files(tmp_path)


def test_a_folder_of_pickles_says_convert(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="convert"):
        missing_files(make(tmp_path, "config.json", "pytorch_model.bin"))
