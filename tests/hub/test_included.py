"""The model inside the package is found with no network, no cache and no home; nothing can delete it."""

from __future__ import annotations

import hashlib
import math
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import qwill
from qwill.errors import ModelNotFoundError, UsageError
from qwill.formats import open_checkpoint
from qwill.hub import CATALOG, included, included_models, list_models, pull, remove, resolve


@pytest.mark.parametrize("name", ["tiny", "TINY", "tiny:Q8_0"])
@pytest.mark.parametrize("offline", [True, False])
def test_it_is_found_where_nothing_can_be_written_or_asked(
    name: str, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWILL_HOME", "/dev/null/nowhere")
    for source in ("auto", "package"):
        found = resolve(name, source=source, offline=offline)
        assert (found.name, found.source, found.revision) == ("tiny", "package", None)
        assert found.path.is_file()
        assert found.path.is_relative_to(Path(qwill.__file__).parent)


def test_the_file_is_the_one_that_the_catalog_promises() -> None:
    for model in included_models():
        entry = CATALOG[model.name]
        assert entry.included is not None
        assert model.path.stat().st_size == entry.bytes
        assert hashlib.sha256(model.path.read_bytes()).hexdigest() == entry.included.sha256
        with open_checkpoint(model.path) as checkpoint:
            assert sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()) == entry.parameters


def test_a_pull_says_that_it_is_here(progress: Any) -> None:
    assert pull("tiny", progress=progress) == resolve("tiny")
    assert progress.messages == ["tiny is part of qwill: there is nothing to download"]


def test_it_is_listed_apart_from_what_was_downloaded() -> None:
    assert [model.name for model in included_models()] == ["tiny"]
    assert list_models() == []


def test_it_is_not_deleted() -> None:
    with pytest.raises(UsageError, match="part of qwill"):
        remove("tiny")
    assert resolve("tiny").path.is_file()


@pytest.mark.parametrize("name", ["tiny@main", "tiny:Q4_K_M"])
@pytest.mark.parametrize("source", ["auto", "package"])
def test_another_revision_or_type_of_it_is_nowhere(name: str, source: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is not part of qwill"):
        resolve(name, source=source)


@pytest.mark.parametrize("source", ["huggingface", "modelscope", "pypi"])
def test_no_other_source_has_it(source: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"is part of qwill, and not at {source}"):
        resolve("tiny", source=source)


def test_other_models_are_not_in_the_package() -> None:
    for name in ("qwen3-0.6b", "acme/tiny"):
        with pytest.raises(ModelNotFoundError, match="part of it: tiny"):
            resolve(name, source="package")


def test_a_folder_of_that_name_is_still_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny").source == "local"


def test_a_damaged_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(included, "_PACKAGE", tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"its file is gone[\s\S]*install qwill again"):
        resolve("tiny")


def test_a_wheel_takes_the_file_along() -> None:
    """What builds wheels takes every file of the folders named here, but for those that git ignores."""
    root = Path(qwill.__file__).parent.parent
    wheel = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]["wheel"]
    assert wheel == {"packages": ["qwill"]}
    rules = (root / ".gitignore").read_text(encoding="utf-8").split()
    for model in included_models():
        parts = model.path.relative_to(root).parts
        assert not [rule for rule in rules for part in parts if fnmatch(part, rule.strip("/"))]
