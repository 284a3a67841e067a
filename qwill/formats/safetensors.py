"""Reader for safetensors: one file, or the shards that an index lists.

Parses headers only; knows nothing of models. Source: the safetensors format description:

    header length u64 (little-endian)   header: JSON, UTF-8, starts with "{"   tensors' data, without holes or tail
    {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …, "__metadata__": {"key": "text"}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qwill.errors import FormatError
from qwill.formats.bounded import Cursor
from qwill.formats.checkpoint import Checkpoint, MappedFile, TensorInfo
from qwill.formats.dtypes import tensor_nbytes

__all__ = ["read_safetensors", "read_shards"]

MAX_HEADER_BYTES = 100_000_000


def read_safetensors(path: Path) -> Checkpoint:
    """Open one .safetensors file."""
    file = MappedFile(path)
    try:
        tensors, metadata = _read_header(file)
    except BaseException:
        file.close()
        raise
    return Checkpoint(path, "safetensors", tensors=tensors, metadata=metadata, files={path: file})


def _read_header(file: MappedFile) -> tuple[dict[str, TensorInfo], dict[str, Any]]:
    assert file.data is not None
    cursor = Cursor(file.data, file=str(file.path))
    size = cursor.limit(cursor.u64("the header's length"), MAX_HEADER_BYTES, "the header's length")
    header = json.loads(cursor.take(size, "the header"))
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if end - start != tensor_nbytes(entry["dtype"], shape):
            raise FormatError("wrong size", where=f"{file.path}, tensor {name}")
        tensors[name] = TensorInfo(name, entry["dtype"], shape, file.path, cursor.position + start, end - start)
    return tensors, metadata


def read_shards(index: Path) -> Checkpoint:
    """Open the shards that a model.safetensors.index.json lists."""
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    files, tensors, metadata = {}, {}, {}
    for name in names:
        file = MappedFile(index.parent / name)
        files[file.path] = file
        more, about = _read_header(file)
        tensors.update(more)
        metadata.update(about)
    return Checkpoint(index.parent, "safetensors", tensors=tensors, metadata=metadata, files=files)
