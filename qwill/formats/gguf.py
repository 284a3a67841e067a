"""Reader for GGUF, versions 2 and 3, little-endian: header, metadata, and where each tensor is.

Parses headers only. Knows nothing of models: what a key or a tensor's name means is config.py's matter.
Source: the GGUF description in the ggml repository (docs/gguf.md):

    "GGUF"  version u32  tensor_count u64  key_value_count u64
    key_value_count × (key string, value type u32, value)
    tensor_count    × (name string, n_dims u32, n_dims × u64, type u32, offset u64)
    padding to the alignment, then the tensors' data; offsets count from here

Stricter than the description in one point: the tensors must fill the data section end to end, each padded to the
alignment, without overlaps and holes. Every known writer lays them out so, and other readers ask for it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qwill.errors import FormatError, UnsupportedModelError
from qwill.formats.bounded import Cursor
from qwill.formats.checkpoint import Checkpoint, MappedFile, TensorInfo
from qwill.formats.dtypes import GGUF_TYPES, GGUF_UNSUPPORTED, tensor_nbytes
from qwill.formats.gguf_values import UINT32, read_value

__all__ = ["read_gguf"]

MAX_KEYS = 2**16
MAX_TENSORS = 2**17
MAX_KEY_BYTES = 2**16 - 1
MAX_NAME_BYTES = 64
MAX_GGUF_DIMS = 4
MAX_ALIGNMENT = 4096
# The fewest bytes that an entry can take; with them the two counts of the header are compared with the file's size.
_LEAST_KEY_VALUE = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8


def read_gguf(path: Path) -> Checkpoint:
    """Open a .gguf file.

    Raises:
        ModelNotFoundError: when there is no such file.
        FormatError: names the offset, and the tensor or key, of what breaks the format's rules.
        UnsupportedModelError: for a version, byte order, tensor type or split file that qwill does not implement.
    """
    file = MappedFile(path)
    try:
        cursor = Cursor(file.map, file=str(path))
        tensor_count, key_count = _read_counts(cursor)
        metadata = _read_metadata(cursor, key_count)
        tensors = _read_tensors(cursor, tensor_count, path, _alignment(cursor, metadata))
        return Checkpoint(path, "gguf", tensors=tensors, metadata=metadata, files={path: file})
    except BaseException:
        file.close()
        raise


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    if cursor.take(4, "the magic number") != b"GGUF":
        raise cursor.fail("not a GGUF file: it does not start with 'GGUF'", at=0)
    version = cursor.u32("the version")
    if version not in (2, 3):
        raise _refusal(cursor, version)
    tensor_count = cursor.limit(cursor.u64("the tensor count"), MAX_TENSORS, "the tensor count")
    key_count = cursor.limit(cursor.u64("the key count"), MAX_KEYS, "the key count")
    cursor.need(1, tensor_count * _LEAST_TENSOR + key_count * _LEAST_KEY_VALUE, "what the header announces")
    return tensor_count, key_count


def _refusal(cursor: Cursor, version: int) -> UnsupportedModelError:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    where = f"{cursor.file}, offset 4"
    if version > 0xFFFF and swapped <= 0xFFFF:
        hint = "convert it to little-endian"
        return UnsupportedModelError(f"a big-endian GGUF file (version {swapped})", where=where, hint=hint)
    hint = "versions 2 and 3 are read; convert the model again"
    return UnsupportedModelError(f"GGUF version {version}", where=where, hint=hint)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.string(MAX_KEY_BYTES, "a key")
        if not key:
            raise cursor.fail("a key is empty", at=start)
        if key in metadata:
            raise cursor.fail(f"the key {key!r:.100} appears twice", at=start)
        kind = cursor.u32(f"the type of {key!r:.100}")
        if key == "general.alignment" and kind != UINT32:
            raise cursor.fail("general.alignment is not an unsigned 32-bit number", at=start)
        metadata[key] = read_value(cursor, key, kind)
        if key == "split.count" and type(metadata[key]) is not int:
            raise cursor.fail("split.count is not a whole number", at=start)
    split = metadata.get("split.count", 1)
    if split > 1:
        hint = "join its parts first, for example with llama-gguf-split --merge"
        raise UnsupportedModelError(f"a GGUF file split into {split} parts", where=cursor.file, hint=hint)
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    value: int = metadata.get("general.alignment", 32)
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.fail(f"general.alignment is {value}; a power of two from 8 to {MAX_ALIGNMENT} is accepted")
    return value


def _read_tensors(cursor: Cursor, count: int, path: Path, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(count):
        start = cursor.position
        info = _read_tensor(cursor, path)
        if info.name in tensors:
            raise cursor.fail(f"the tensor {info.name!r} appears twice", at=start)
        tensors[info.name] = info
    data_start = _padded(cursor.position, alignment)
    _check_layout(cursor, tensors, data_start, alignment)
    return {
        t.name: TensorInfo(t.name, t.dtype, t.shape, path, data_start + t.offset, t.nbytes) for t in tensors.values()
    }


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _read_tensor(cursor: Cursor, path: Path) -> TensorInfo:
    """One entry of the tensor list; its `offset` still counts from the start of the data section."""
    start = cursor.position
    name = cursor.string(MAX_NAME_BYTES, "a tensor's name")
    what = f"tensor {name!r}"
    if not name:
        raise cursor.fail("a tensor's name is empty", at=start)
    dims = cursor.limit(cursor.u32(f"{what}: the dimensions"), MAX_GGUF_DIMS, f"{what}: the number of dimensions")
    sizes = [cursor.u64(f"{what}: a dimension") for _ in range(dims)]
    kind = cursor.u32(f"{what}: the type")
    offset = cursor.u64(f"{what}: the offset")
    if kind in GGUF_UNSUPPORTED:
        raise UnsupportedModelError(
            f"{what} is of type {GGUF_UNSUPPORTED[kind]}, which is not implemented",
            where=f"{cursor.file}, offset {start}",
            hint="take the same model in another type: " + ", ".join(GGUF_TYPES.values()),
        )
    if kind not in GGUF_TYPES:
        raise cursor.fail(f"{what} is of unknown type {kind}", at=start)
    shape = tuple(reversed(sizes))  # GGUF writes the innermost dimension first
    try:
        nbytes = tensor_nbytes(GGUF_TYPES[kind], shape)
    except ValueError as error:
        raise cursor.fail(f"{what}: {error}", at=start) from None
    return TensorInfo(name, GGUF_TYPES[kind], shape, path, offset, nbytes)


def _check_layout(cursor: Cursor, tensors: dict[str, TensorInfo], data_start: int, alignment: int) -> None:
    """Aligned, end to end, and inside the file."""
    expected = 0
    for info in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        where = f"{cursor.file}, tensor {info.name!r}, offset {data_start + info.offset}"
        if info.offset % alignment:
            raise FormatError(f"the tensor's offset is not a multiple of {alignment}", where=where)
        if info.offset != expected:
            what = "overlaps the tensor before it" if info.offset < expected else "leaves a hole before it"
            raise FormatError(f"the tensor {what}: {data_start + expected} was expected", where=where)
        end = data_start + info.offset + info.nbytes
        if end > cursor.end:
            raise FormatError(
                f"the tensor's {info.nbytes} bytes end at {end}, after the end of the file at {cursor.end}",
                where=where,
                hint="the file is cut short; pull it again",
            )
        expected = _padded(info.offset + info.nbytes, alignment)
