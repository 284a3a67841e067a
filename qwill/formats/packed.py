"""Weights that are packed for the kernels, in a safetensors file: how they are named, and what is checked of them.

A packed matrix is a tensor of type U8 with one dimension: its bytes, filled up to a multiple of 64 so that the next one
starts at a cache line. What it means stands in the file's `__metadata__`:

    "quant_method": "qwill"   "quant_version": "1"
    "packed": JSON, {"model.layers.0.mlp.up_proj.weight": ["uint4_super", 3072, 1024], …}: format, rows, columns

Readers get such a tensor as one of type "uint4_super" and shape (3072, 1024). Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.bounded_json import parse_object
from qwill.formats.checkpoint import TensorInfo
from qwill.formats.weight_formats import FORMATS

__all__ = ["ALIGNMENT", "QUANTS", "packed_metadata", "quantization_config", "stored_bytes", "with_packed"]

QUANT_METHOD = "qwill"
VERSION = 1
ALIGNMENT = 64

QUANTS = ("int4", "int8")
"""What a model can be quantized to."""

_MAX_SIZE = 2**48


def stored_bytes(nbytes: int) -> int:
    """Bytes of a packed matrix in the file."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def quantization_config(quant: str) -> dict[str, Any]:
    """What config.json says, under this name, of a model whose weights are packed."""
    return {"quant_method": QUANT_METHOD, "version": VERSION, "quant": quant}


def packed_metadata(packed: Mapping[str, tuple[str, int, int]]) -> dict[str, str]:
    """The `__metadata__` of a file with these packed matrices: name -> format, rows, columns."""
    entries = json.dumps({name: list(about) for name, about in packed.items()}, separators=(",", ":"))
    return {"format": "pt", "quant_method": QUANT_METHOD, "quant_version": str(VERSION), "packed": entries}


def with_packed(tensors: list[TensorInfo], metadata: Mapping[str, str], where: str) -> list[TensorInfo]:
    """The tensors of a file, packed matrices with their own format and shape. All that the file says is checked.

    Raises:
        UnsupportedModelError: a later version, or a format that this qwill does not know.
        FormatError: the entries are malformed, or name tensors that are not there or of another size or place.
    """
    if metadata.get("quant_method") != QUANT_METHOD:
        return tensors
    if metadata.get("quant_version") != str(VERSION):
        raise UnsupportedModelError(
            f"packed weights of version {metadata.get('quant_version', 'none')!r:.20} are not read, only {VERSION}",
            where=where,
            hint="a newer qwill wrote this file: update qwill, or quantize the model again",
        )
    entries = _entries(metadata, where)
    missing = entries.keys() - {info.name for info in tensors}
    if missing:
        raise FormatError(f"the packed tensor {min(missing)!r:.200} is not in the file", where=where)
    return [_checked(info, entries[info.name], where) if info.name in entries else info for info in tensors]


def _entries(metadata: Mapping[str, str], where: str) -> dict[str, Any]:
    try:
        return parse_object(metadata.get("packed", "").encode())
    except ValueError as error:
        raise FormatError(f"the list of packed tensors is not valid: {error}", where=where) from None


def _checked(info: TensorInfo, entry: Any, file: str) -> TensorInfo:
    where = f"{file}, tensor {info.name!r:.200}"
    if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
        raise FormatError(f"{entry!r:.100} is not a format, rows and columns", where=where)
    name, *shape = entry
    if not all(type(size) is int and 0 < size < _MAX_SIZE for size in shape):
        raise FormatError(f"{shape!r:.100} are not rows and columns", where=where)
    if name not in FORMATS:
        hint = "a newer qwill may have written this file; this one knows " + ", ".join(FORMATS)
        raise UnsupportedModelError(f"weights of format {name:.40} are not implemented", where=where, hint=hint)
    rows, columns = shape
    nbytes = FORMATS[name].nbytes(rows, columns)
    if info.dtype != "U8" or info.shape != (stored_bytes(nbytes),):
        raise FormatError(
            f"{rows} × {columns} weights of format {name} take {stored_bytes(nbytes)} bytes, but the tensor is "
            f"{info.dtype} of shape {list(info.shape)}",
            where=where,
            hint="the file is damaged; quantize the model again",
        )
    if info.offset % ALIGNMENT:
        raise FormatError(f"packed weights start at byte {info.offset}, not a multiple of {ALIGNMENT}", where=where)
    return replace(info, dtype=name, shape=(rows, columns), nbytes=nbytes)
