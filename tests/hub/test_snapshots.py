"""The layout of the Hugging Face cache, in the corners that a pull does not reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import DownloadError, ModelNotFoundError
from qwill.hub import list_models, resolve
from qwill.hub.snapshots import RepoCache, lacking, repositories

COMMIT = "a" * 40


@pytest.fixture
def cache(tmp_path: Path) -> RepoCache:
    return RepoCache(tmp_path / "hf", "acme/tiny-qwen")


def lay(cache: RepoCache, *names: str, commit: str = COMMIT, ref: str = "main") -> Path:
    snapshot = cache.folder / "snapshots" / commit
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(b"{}")
    (cache.folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (cache.folder / "refs" / ref).write_text(commit + "\n")
    return snapshot


def test_a_revision_leads_to_its_snapshot(cache: RepoCache) -> None:
    snapshot = lay(cache, "config.json")
    lay(cache, ref="refs/pr/1")
    assert cache.snapshot("main") == cache.snapshot("refs/pr/1") == cache.snapshot(COMMIT) == snapshot
    assert cache.snapshot("other") is None
    assert cache.snapshot("b" * 40) is None
    assert cache.snapshots() == [(snapshot, ["main", "refs/pr/1"])]


@pytest.mark.parametrize("content", [b"", b"../..", b"a" * 39, b"A" * 40, b"refs", b"\xff", b"a" * 40 + b"\xff"])
def test_a_ref_that_holds_no_commit_leads_nowhere(cache: RepoCache, content: bytes) -> None:
    snapshot = lay(cache, "config.json")
    (cache.folder / "refs" / "main").write_bytes(content)
    assert cache.snapshot("main") is None
    assert cache.snapshots() == [(snapshot, [])]


def test_whole_means_config_weights_and_tokenizer(cache: RepoCache) -> None:
    snapshot = lay(cache, "config.json", "model.safetensors")
    assert lacking(snapshot) == ["tokenizer.json"]
    assert cache.find("main", None) is None
    assert cache.missing("main", None) == ["tokenizer.json"]
    lay(cache, "vocab.json", "merges.txt")
    assert cache.find("main", None) == snapshot


def test_pickles_alone_are_not_a_model(cache: RepoCache) -> None:
    lay(cache, "config.json", "tokenizer.json", "pytorch_model.bin")
    assert cache.find("main", None) is None


def test_a_link_whose_bytes_are_gone_is_missing(cache: RepoCache) -> None:
    snapshot = lay(cache, "config.json", "tokenizer.json", "model.safetensors")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    assert cache.find("main", None) is None
    assert cache.missing("main", None) == ["model.safetensors"]


def test_a_gguf_is_found_by_type_or_alone(cache: RepoCache) -> None:
    snapshot = lay(cache, "a-Q8_0.gguf")
    assert cache.find("main", None) == cache.find("main", "q8_0") == snapshot / "a-Q8_0.gguf"
    lay(cache, "sub/a-Q4_0.gguf")
    assert cache.find("main", None) is None
    assert cache.find("main", "Q4_0") == snapshot / "sub" / "a-Q4_0.gguf"
    assert cache.find("main", "Q5_0") is None
    assert cache.missing("main", "Q5_0") == ["the GGUF file of type Q5_0"]


def test_nothing_at_all_is_missing_everything(cache: RepoCache) -> None:
    assert cache.missing("main", None) == ["all of its files"]


def test_repositories_are_named_as_on_the_hub(cache: RepoCache, tmp_path: Path) -> None:
    lay(cache, "config.json")
    for other in ("datasets--a--b", ".locks", "models--gpt2", "version.txt"):
        (tmp_path / "hf" / other).mkdir()
    assert [found.repo for found in repositories(tmp_path / "hf")] == ["acme/tiny-qwen"]
    assert list(repositories(tmp_path / "none")) == []


def test_where_links_are_impossible_the_file_itself_is_there(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    found = resolve(hub.repo, source="huggingface", endpoint=hub.url)
    assert (found.path / "model.safetensors").read_bytes() == hub.weights
    assert not any(path.is_symlink() for path in found.path.iterdir())
    hub.requests.clear()
    assert resolve(hub.repo, source="huggingface", endpoint=hub.url, offline=True) == found


def test_finding_writes_nothing_so_a_read_only_cache_will_do(hub: Any, caches: Path) -> None:
    found = resolve(hub.repo, source="huggingface", endpoint=hub.url)
    before = {path: path.lstat().st_mtime_ns for path in (caches / "hf").rglob("*")}
    assert resolve(hub.repo, source="huggingface", endpoint=hub.url) == found
    assert {path: path.lstat().st_mtime_ns for path in (caches / "hf").rglob("*")} == before


@pytest.mark.parametrize("place", ["hf", "hf/.locks", "hf/models--acme--tiny-qwen"])
def test_a_file_where_the_cache_needs_a_folder_is_a_typed_error(hub: Any, caches: Path, place: str) -> None:
    (caches / place).parent.mkdir(exist_ok=True)
    (caches / place).write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot keep a model here") as error:
        resolve(hub.repo, source="huggingface", endpoint=hub.url)
    assert str(caches / place) in error.value.where
    assert list_models() == []


def test_a_ref_moves_only_after_everything_is_there(hub: Any, cache: RepoCache, progress: Any) -> None:
    lay(cache, "config.json", commit="b" * 40)
    hub.fail("model.safetensors", status=404)
    with pytest.raises(ModelNotFoundError):
        resolve(hub.repo, source="huggingface", endpoint=hub.url, progress=progress)
    assert (cache.folder / "refs" / "main").read_text().strip() == "b" * 40
    assert progress.finished == 1
    resolve(hub.repo, source="huggingface", endpoint=hub.url)
    assert (cache.folder / "refs" / "main").read_text() == COMMIT
