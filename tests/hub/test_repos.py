"""Finding and fetching a model of a repository, whichever hub it is on."""

from __future__ import annotations

from typing import Any

import pytest

from qwill.errors import ModelNotFoundError
from qwill.hub import huggingface, modelscope, repos
from qwill.hub.names import parse_name


@pytest.mark.parametrize("source", [huggingface, modelscope])
def test_what_is_fetched_is_found_afterwards(hub: Any, progress: Any, source: Any) -> None:
    name = parse_name(hub.repo)
    assert repos.find(source, name) is None
    assert repos.missing(source, name) == ["all of its files"]
    fetched = repos.fetch(source, name, endpoint=hub.url, progress=progress)
    assert repos.find(source, name) == fetched
    assert repos.missing(source, name) == []
    assert (progress.label, progress.unit, progress.resumed, progress.finished) == (hub.repo, "bytes", 0, 1)
    assert progress.done == progress.total == sum(len(hub.files[file]) for file in hub.fetched)
    assert progress.items[-1] == "model.safetensors"


@pytest.mark.parametrize("source", [huggingface, modelscope])
def test_a_catalog_name_is_translated_to_the_hubs_repository(hub: Any, progress: Any, source: Any) -> None:
    hub.add_tiny(repo="Qwen/Qwen3-0.6B")
    fetched = repos.fetch(source, parse_name("qwen3-0.6b"), endpoint=hub.url, progress=progress)
    assert fetched.name == "qwen3-0.6b"
    assert repos.find(source, parse_name("Qwen/Qwen3-0.6B")).path == fetched.path  # type: ignore[union-attr]


def test_a_hub_that_has_it_not_is_not_asked(progress: Any) -> None:
    name = parse_name("smollm2-135m")
    assert repos.find(modelscope, name) is None
    assert repos.missing(modelscope, name) == []
    with pytest.raises(ModelNotFoundError, match="not published there"):
        repos.fetch(modelscope, name, endpoint=None, progress=progress)
