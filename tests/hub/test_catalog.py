"""The catalog's facts: sizes follow from the published shapes, names can be typed, recipes add up."""

from __future__ import annotations

import re

import pytest

from qwill.hub.catalog import CATALOG
from qwill.hub.names import parse_name

# hidden, intermediate, layers, heads, tied: the config.json of each Qwen3; 8 KV heads of 128 in all of them.
QWEN3 = {
    "qwen3-0.6b": (1024, 3072, 28, 16, True),
    "qwen3-1.7b": (2048, 6144, 28, 16, True),
    "qwen3-4b": (2560, 9728, 36, 32, True),
    "qwen3-8b": (4096, 12288, 36, 32, False),
    "qwen3-14b": (5120, 17408, 40, 40, False),
    "qwen3-32b": (5120, 25600, 64, 64, False),
}


@pytest.mark.parametrize("name", QWEN3)
def test_parameters_follow_from_the_shapes(name: str) -> None:
    hidden, intermediate, layers, heads, tied = QWEN3[name]
    attention = hidden * 128 * (2 * heads + 2 * 8) + 2 * 128
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    embedding = 151936 * hidden
    parameters = layers * layer + embedding * (1 if tied else 2) + hidden
    entry = CATALOG[name]
    assert entry.parameters == parameters
    assert entry.bytes in (2 * parameters, 2 * (parameters + embedding))  # the small ones store the head twice


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)
def test_an_entry_can_be_typed_and_has_a_source(entry: object) -> None:
    name = entry.name  # type: ignore[attr-defined]
    found = CATALOG[name]
    assert parse_name(name).entry is found
    assert found.sources[0] == ("package" if found.included else "huggingface")
    assert found.description.count("\n") == 0 < len(found.description) <= 100
    for repo in found.repos.values():
        assert parse_name(repo).repo == repo


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "smollm2-135m"])
def test_a_recipe_adds_up(name: str) -> None:
    recipe = CATALOG[name].pypi
    assert recipe is not None
    assert recipe.size == CATALOG[name].bytes
    assert re.fullmatch("[0-9a-f]{64}", recipe.sha256)
    assert recipe.file_name.endswith(".gguf")
    assert CATALOG[name].sources[-1] == "pypi"
