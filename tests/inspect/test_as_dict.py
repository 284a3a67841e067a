from __future__ import annotations

import dataclasses
import json
from typing import Any

from qwill.config import ModelConfig
from qwill.inspect.as_dict import structure_to_dict
from qwill.inspect.structure import structure


def test_it_is_plain_data(models: Any) -> None:
    found = structure_to_dict(structure(models.write()))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_schema_is_the_documented_one(models: Any) -> None:
    found = structure_to_dict(structure(models.write()))
    documented = structure_to_dict.__doc__ or ""
    for key in found:
        assert key in documented
    assert found["schema"] == 1
    assert set(found["config"]) == {field.name for field in dataclasses.fields(ModelConfig)}
    assert set(found["parameters"]) == {
        *("total", "embedding", "language_model", "lm_head", "stored", "not_counted"),
    }
    assert set(found["memory"]) == {"files", "weights", "kv_cache"}
    assert set(found["memory"]["weights"]) == {"fp32", "bf16", "int8", "int4"}
    assert set(found["tensors"][0]) == {"name", "stored_name", "dtype", "shape", "bytes", "file", "offset", "role"}


def test_sizes_add_up(models: Any) -> None:
    folder = models.write()
    found = structure_to_dict(structure(folder))
    size = (folder / "model.safetensors").stat().st_size
    assert found["files"] == {"model.safetensors": size}
    assert found["memory"]["files"] == size
    first = min(tensor["offset"] for tensor in found["tensors"])
    assert sum(tensor["bytes"] for tensor in found["tensors"]) == size - first == found["modules"][0]["bytes"]
    assert found["modules"][0] == {
        "name": "",
        "parameters": found["parameters"]["total"],
        "bytes": size - first,
    }


def test_parents_come_before_their_children(models: Any) -> None:
    names = [module["name"] for module in structure_to_dict(structure(models.write()))["modules"]]
    assert len(names) == len(set(names))
    for name in names[1:]:
        assert names.index(name.rpartition(".")[0]) < names.index(name)


def test_a_model_without_a_configuration_has_nulls(models: Any) -> None:
    found = structure_to_dict(structure(models.write({}, tensors={"a": ("F32", (1,))})))
    assert (found["config"], found["memory"]["kv_cache"], found["tokenizer_size"]) == (None, None, None)
    assert found["mismatches"][0]["kind"] == "config"
