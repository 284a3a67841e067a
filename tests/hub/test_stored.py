"""Listing what is here, and deleting one model of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from qwill.errors import ModelNotFoundError, UsageError
from qwill.hub import list_models, remove, resolve, stored
from qwill.hub.catalog import CATALOG


def get(name: str, hub: Any, source: str = "huggingface") -> Any:
    return resolve(name, source=source, endpoint=hub.url)


def names() -> list[str]:
    return sorted(model.name for model in list_models())


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def add_wheels_model(caches: Path) -> Path:
    """A whole file as the wheels of smollm2-135m would leave it, by its size."""
    recipe = CATALOG["smollm2-135m"].pypi
    assert recipe is not None
    file = caches / "qwill" / "pypi" / "smollm2-135m" / recipe.file_name
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(recipe.size)
    return file


def test_nothing_is_listed_where_nothing_is() -> None:
    assert list_models() == []


def test_every_source_is_listed_with_name_size_and_revision(hub: Any, caches: Path) -> None:
    hub.add_tiny(repo="Qwen/Qwen3-0.6B", commit="b" * 40)
    get(hub.repo, hub)
    get("qwen3-0.6b", hub, "modelscope")
    file = add_wheels_model(caches)
    by_name = {model.name: model for model in list_models()}
    assert sorted(by_name) == ["acme/tiny-qwen", "qwen3-0.6b", "smollm2-135m"]
    tiny = by_name["acme/tiny-qwen"]
    assert (tiny.source, tiny.revision) == ("huggingface", "main")
    assert tiny.bytes == sum(len(hub.files[name]) for name in hub.fetched)
    assert (by_name["qwen3-0.6b"].source, by_name["qwen3-0.6b"].revision) == ("modelscope", "master")
    assert (by_name["smollm2-135m"].path, by_name["smollm2-135m"].revision) == (file, None)
    assert tiny.last_used.tzinfo is not None


def test_what_qwill_cannot_run_is_not_listed(hub: Any, caches: Path) -> None:
    bert = {**hub.files, "config.json": b'{"model_type": "bert", "architectures": ["BertModel"]}'}
    hub.add(bert, "acme/bert", "c" * 40)
    get("acme/bert", hub)
    (caches / "hf" / "models--acme--half" / "snapshots" / ("d" * 40)).mkdir(parents=True)
    assert list_models() == []


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "refs"])
def test_a_damaged_model_does_not_hide_the_others(hub: Any, file: str) -> None:
    hub.add_tiny(repo="acme/bad", commit="c" * 40)
    get(hub.repo, hub)
    snapshot = get("acme/bad", hub).path
    if file == "refs":
        (snapshot.parent.parent / "refs" / "main").write_bytes(b"\xff")
        assert names() == ["acme/bad@" + "c" * 40, hub.repo]
        return
    for damage in (b"\xff", b"[" * 100_000, b'{"weight_map": 3, "model_type": []}', None):
        for name in (file, "model.safetensors"):
            (snapshot / name).unlink(missing_ok=True)
        (snapshot / "model.safetensors").write_bytes(b"x") if file == "config.json" else None
        (snapshot / file).write_bytes(damage) if damage else (snapshot / file).mkdir()
        assert names() == [hub.repo]


def test_whatever_reading_a_config_ends_in_the_listing_goes_on(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    get(hub.repo, hub)
    for error in (PermissionError(13, "no"), TypeError("x"), KeyError("x"), OverflowError("x"), RecursionError("x")):
        monkeypatch.setattr(stored, "load_config", Mock(side_effect=error))
        assert list_models() == []


def test_no_name_at_all_deletes_nothing_and_says_so(hub: Any) -> None:
    get(hub.repo, hub)
    with pytest.raises(UsageError, match="name is empty"):
        remove("")
    assert names() == [hub.repo]


def test_every_listed_name_leads_back_to_the_model(hub: Any) -> None:
    hub.add({"x-Q8_0.gguf": b"8", "x-Q4_0.gguf": b"4"}, "acme/gguf", "e" * 40)
    get(hub.repo, hub)
    get("acme/gguf:Q8_0", hub)
    get("acme/gguf:Q4_0", hub)
    get(f"{hub.repo}@{'a' * 40}", hub)
    assert names() == ["acme/gguf:Q4_0", "acme/gguf:Q8_0", "acme/tiny-qwen"]
    for model in list_models():
        assert resolve(model.name, offline=True).path == model.path


def test_another_revision_is_listed_with_its_name(hub: Any) -> None:
    get(hub.repo, hub)
    hub.add_tiny(seed=1, commit="b" * 40)
    get(f"{hub.repo}@{'b' * 40}", hub)
    assert names() == ["acme/tiny-qwen", "acme/tiny-qwen@" + "b" * 40]


def test_only_the_named_model_is_deleted(hub: Any, caches: Path) -> None:
    hub.add_tiny(seed=1, repo="acme/other", commit="b" * 40)
    get(hub.repo, hub)
    kept = get("acme/other", hub)
    size = next(model.bytes for model in list_models() if model.name == hub.repo)
    assert remove(hub.repo) == size
    assert names() == ["acme/other"]
    assert (kept.path / "model.safetensors").exists()
    assert not (caches / "hf" / "models--acme--tiny-qwen").exists()


def test_one_gguf_of_several_is_deleted(hub: Any, caches: Path) -> None:
    hub.add({"x-Q8_0.gguf": b"8" * 1000, "x-Q4_0.gguf": b"4" * 500}, "acme/gguf", "e" * 40)
    for quant in ("Q8_0", "Q4_0"):
        get(f"acme/gguf:{quant}", hub)
    with pytest.raises(UsageError, match=r"2 models here[\s\S]*acme/gguf:Q4_0, acme/gguf:Q8_0"):
        remove("acme/gguf")
    assert remove("acme/gguf:q8_0") == 1000
    assert names() == ["acme/gguf:Q4_0"]
    assert remove("acme/gguf") == 500
    assert files_below(caches / "hf") == []


def test_one_revision_of_several_is_deleted_and_shared_bytes_stay(hub: Any) -> None:
    main = get(hub.repo, hub)
    hub.add_tiny(seed=1, commit="b" * 40)
    get(f"{hub.repo}@{'b' * 40}", hub)
    assert remove(f"{hub.repo}@{'b' * 40}") == 100_000  # the weights differ, the rest is shared
    assert names() == [hub.repo]
    hub.add_tiny()
    assert all((main.path / name).read_bytes() == hub.files[name] for name in hub.fetched)


def test_a_model_out_of_wheels_is_deleted(caches: Path) -> None:
    file = add_wheels_model(caches)
    assert remove("smollm2-135m") >= 98_362_432
    assert not file.parent.exists()


def test_a_source_can_be_chosen(hub: Any) -> None:
    get(hub.repo, hub)
    get(hub.repo, hub, "modelscope")
    assert len(list_models()) == 2
    remove(hub.repo, source="modelscope")
    assert [model.source for model in list_models()] == ["huggingface"]
    get(hub.repo, hub, "modelscope")
    remove(hub.repo)
    assert list_models() == []


def test_half_a_download_can_be_deleted(hub: Any, caches: Path) -> None:
    hub.fail("model.safetensors", status=404)
    with pytest.raises(ModelNotFoundError):
        get(hub.repo, hub)
    assert list_models() == []
    assert remove(hub.repo) > 0
    assert files_below(caches / "hf") == []


def test_an_unknown_name_suggests_what_is_here(hub: Any) -> None:
    get(hub.repo, hub)
    with pytest.raises(ModelNotFoundError, match=r"not on this machine[\s\S]*acme/tiny-qwen"):
        remove("acme/tiny-qwem")
    with pytest.raises(ModelNotFoundError, match="not on this machine"):
        remove("qwen3-8b")
    with pytest.raises(ModelNotFoundError, match="no model 'tiny-qwen'"):
        remove("tiny-qwen")
    assert names() == [hub.repo]


def test_files_of_the_user_are_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    with pytest.raises(UsageError, match="only what it downloaded"):
        remove(str(tmp_path / "x.gguf"))
    assert (tmp_path / "x.gguf").exists()
