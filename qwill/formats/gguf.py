"""Reader for GGUF, versions 2 and 3, little-endian: header, metadata, and where each tensor is.

Parses headers only. Knows nothing of models: what a key or a tensor's name means is config.py's matter.
Source: the GGUF description in the ggml repository (docs/gguf.md):

    "GGUF"  version u32  tensor_count u64  key_value_count u64
    key_value_count × (key string, value type u32, value)
    tensor_count    × (name string, n_dims u32, n_dims × u64, type u32, offset u64)
    padding to the alignment, then the tensors' data; offsets count from here

Stricter than the description where real files allow it: the tensors must fill the data section without holes or
overlaps, each padded to the alignment, as every known writer lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.bounded import Cursor
from qwill.formats.checkpoint import Checkpoint, MappedFile, TensorInfo
from qwill.formats.dtypes import GGUF_TYPES, GGUF_UNSUPPORTED, tensor_nbytes
from qwill.formats.gguf_values import read_value

__all__ = ["read_gguf"]

MAX_KEYS = 2**16
MAX_TENSORS = 2**17
MAX_KEY_BYTES = 2**16 - 1
MAX_NAME_BYTES = 64
MAX_GGUF_DIMS = 4
MAX_ALIGNMENT = 4096
# The fewest bytes an entry can take: the bound for the two counts of the header.
_LEAST_KEY_VALUE = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8


def read_gguf(path: Path) -> Checkpoint:
    """Open a .gguf file.

    Raises:
        ModelNotFoundError: when there is no such file.
        FormatError: names the offset, and the tensor or key, of what breaks the format's rules.
        UnsupportedModelError: for a version, byte order or tensor type that qwill does not implement.
    """
    file = MappedFile(path)
    assert file.data is not None
    try:
        cursor = Cursor(file.data, file=str(path))
        tensor_count, key_count = _read_counts(cursor)
        metadata = _read_metadata(cursor, key_count)
        alignment = _alignment(metadata, path)
        tensors = _read_tensors(cursor, tensor_count, path, alignment)
        return Checkpoint(path, "gguf", tensors=tensors, metadata=metadata, files={path: file})
    except BaseException:
        file.close()
        raise


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    if cursor.take(4, "the magic number") != b"GGUF":
        raise cursor.fail("not a GGUF file: it does not start with 'GGUF'", at=0)
    version = cursor.u32("the version")
    if version not in (2, 3):
        _refuse_version(cursor, version)
    tensor_count = cursor.u64("the tensor count")
    key_count = cursor.u64("the key count")
    cursor.limit(tensor_count, MAX_TENSORS, "the tensor count")
    cursor.limit(key_count, MAX_KEYS, "the key count")
    cursor.need(1, tensor_count * _LEAST_TENSOR + key_count * _LEAST_KEY_VALUE, "what the header announces")
    return tensor_count, key_count


def _refuse_version(cursor: Cursor, version: int) -> None:
    where = "offset 4"
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError("a big-endian GGUF file", where=where, hint="convert it to little-endian")
    if version in (0, 1):
        raise UnsupportedModelError(
            f"GGUF version {version}", where=where, hint="convert the model again; 2 and 3 are read"
        )
    raise UnsupportedModelError(f"GGUF version {version}", where=where, hint="versions 2 and 3 are read")


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.string(MAX_KEY_BYTES, "a key")
        if not key:
            raise cursor.fail("an empty key", at=start)
        if key in metadata:
            raise cursor.fail(f"the key {key!r:.100} appears twice", at=start)
        metadata[key] = read_value(cursor, key)
    return metadata


def _alignment(metadata: Mapping[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or value % 8 or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise FormatError(
            f"general.alignment is {value!r:.100}",
            where=str(path),
            hint=f"a power of two from 8 to {MAX_ALIGNMENT} is accepted",
        )
    return value


def _read_tensors(cursor: Cursor, count: int, path: Path, alignment: int) -> dict[str, TensorInfo]:
    announced = [_read_tensor_info(cursor) for _ in range(count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, dtype, shape, offset in announced:
        tensors[name] = TensorInfo(name, dtype, shape, path, data_start + offset, tensor_nbytes(dtype, shape))
    return tensors


def _read_tensor_info(cursor: Cursor) -> tuple[str, str, tuple[int, ...], int]:
    name = cursor.string(MAX_NAME_BYTES, "a tensor's name")
    dims = cursor.limit(cursor.u32("the number of dimensions"), MAX_GGUF_DIMS, "the number of dimensions")
    sizes = [cursor.u64("a dimension") for _ in range(dims)]
    kind = cursor.u32("the tensor's type")
    offset = cursor.u64("the tensor's offset")
    if kind not in GGUF_TYPES:
        raise UnsupportedModelError(f"tensor type {GGUF_UNSUPPORTED.get(kind, kind)}", where=f"tensor {name!r:.100}")
    return name, GGUF_TYPES[kind], tuple(reversed(sizes)), offset
