"""A structure as plain data, for `qwill inspect --json`. Knows nothing of consoles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qwill.inspect.memory import kv_memory, weight_memory
from qwill.inspect.modules import Module, Tensor
from qwill.inspect.structure import Structure

__all__ = ["structure_to_dict"]

SCHEMA = 1


def structure_to_dict(structure: Structure) -> dict[str, Any]:
    """Everything that is known, as dictionaries, lists, texts and numbers. Sizes in bytes, counts in elements.

    schema       1; a later version that changes or removes a key has a higher number, new keys do not count
    name, source, format          as in `Structure`
    files        {file name: bytes}
    config       the fields of `ModelConfig`, or null when it cannot be read
    tokenizer_size                ids that the tokenizer uses, or null where that is not known
    parameters   {total, embedding, language_model, lm_head, stored, not_counted: [tensor names]};
                 total counts each parameter once, stored counts all that is in the files
    memory       {files, weights: {fp32, bf16, int8, int4},
                 kv_cache: {dtype, per_token, per_1024_tokens, context, at_full_context} or null}
    modules      [{name, parameters, bytes}], parents before their children; the first, "", is the whole model
    tensors      [{name, stored_name, dtype, shape, bytes, file, offset, role}] in the order of the files;
                 role: embedding, language_model, lm_head, or (not counted) tied copy, buffer, unused
    mismatches   [{kind, details: [text]}]; kind: config, missing, unused, wrong shape
    """
    counts = structure.parameters
    return {
        "schema": SCHEMA,
        "name": structure.name,
        "source": structure.source,
        "format": structure.format,
        "files": dict(structure.files),
        "config": _plain(structure.config) if structure.config else None,
        "tokenizer_size": structure.tokenizer_size,
        "parameters": {"total": counts.total, **_plain(counts)},
        "memory": _memory(structure),
        "modules": _modules(structure.root),
        "tensors": [_tensor(tensor) for tensor in structure.tensors],
        "mismatches": [_plain(mismatch) for mismatch in structure.mismatches],
    }


def _plain(record: Any) -> dict[str, Any]:
    """A dataclass's fields, with lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(record).items()}


def _memory(structure: Structure) -> dict[str, Any]:
    kv = kv_memory(structure)
    cache = kv and {
        "dtype": "bfloat16",
        "per_token": kv.per_token,
        "per_1024_tokens": kv.per_step,
        "context": kv.context,
        "at_full_context": kv.at_full_context,
    }
    return {"files": sum(structure.files.values()), "weights": weight_memory(structure), "kv_cache": cache}


def _modules(module: Module) -> list[dict[str, Any]]:
    own = {"name": module.name, "parameters": module.parameters, "bytes": module.nbytes}
    return [own, *(row for child in module.children for row in _modules(child))]


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "stored_name": tensor.stored_name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "file": tensor.file,
        "offset": tensor.offset,
        "role": tensor.role,
    }
