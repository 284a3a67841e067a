"""Reader for one safetensors file: its header, and where each tensor is.

Parses headers only; knows nothing of models and of other files. Source: the safetensors format description:

    header length u64 (little-endian)   header: JSON, UTF-8, starts with "{"   the tensors' data
    {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …, "__metadata__": {"key": "text"}}

The header is at most 100 MB, offsets count from the end of the header, and the tensors cover the data without
overlaps, holes or a tail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qwill.errors import FormatError
from qwill.formats.bounded import Cursor
from qwill.formats.bounded_json import parse_object
from qwill.formats.checkpoint import Checkpoint, MappedFile, TensorInfo
from qwill.formats.dtypes import MAX_DIMS, SAFETENSORS_TYPES, tensor_nbytes
from qwill.formats.packed import with_packed

__all__ = ["read_header", "read_safetensors"]

MAX_HEADER_BYTES = 100_000_000
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


def read_safetensors(path: Path) -> Checkpoint:
    """Open one .safetensors file.

    Raises:
        ModelNotFoundError: when there is no such file.
        FormatError: names the tensor, or the offset, of what breaks the format's rules.
        UnsupportedModelError: weights are packed in a way that this qwill does not know.
    """
    file = MappedFile(path)
    try:
        tensors, metadata = read_header(file)
    except BaseException:
        file.close()
        raise
    return Checkpoint(path, "safetensors", tensors=tensors, metadata=metadata, files={path: file})


def read_header(file: MappedFile) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors, in the order of their data, and the `__metadata__` of a file.

    Raises:
        FormatError, UnsupportedModelError: as `read_safetensors`.
    """
    cursor = Cursor(file.map, file=str(file.path))
    size = cursor.limit(cursor.u64("the header's length"), MAX_HEADER_BYTES, "the header's length")
    try:
        header = parse_object(cursor.take(size, "the header"))
    except ValueError as error:
        raise cursor.fail(f"the header is not valid: {error}", at=8) from None
    metadata = _metadata(header.pop("__metadata__", {}), file.path)
    tensors = _tensors(header, file.path, cursor.position)
    tensors.sort(key=lambda t: (t.offset, t.nbytes))
    _check_cover(tensors, cursor)
    tensors = with_packed(tensors, metadata, str(file.path))
    return {info.name: info for info in tensors}, metadata


def _metadata(content: Any, path: Path) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise FormatError("__metadata__ is not an object of texts", where=str(path))
    return content


def _tensors(header: dict[str, Any], path: Path, data_start: int) -> list[TensorInfo]:
    tensors = []
    for name, entry in header.items():
        try:
            tensors.append(_tensor(name, entry, path, data_start))
        except ValueError as error:
            raise FormatError(str(error), where=f"{path}, tensor {name!r:.200}") from None
    return tensors


def _tensor(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    """One entry of the header, or a ValueError in words."""
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise ValueError("the entry is not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_TYPES:
        raise ValueError(f"unknown dtype {dtype!r:.60}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise ValueError(f"shape {shape!r:.100} is not a list of at most {MAX_DIMS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"data_offsets {offsets!r:.100} are not two sizes")
    start, end = offsets
    nbytes = tensor_nbytes(dtype, shape)
    if end - start != nbytes:
        raise ValueError(
            f"{dtype} of shape {shape} takes {nbytes} bytes, but its data_offsets {offsets} span {end - start}"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + start, nbytes)


def _are_sizes(values: Any) -> bool:
    # A loop: with 100,000 tensors, this is where the time goes.
    if not isinstance(values, list):
        return False
    for value in values:  # noqa: SIM110
        if type(value) is not int or not 0 <= value < 2**63:
            return False
    return True


def _check_cover(tensors: list[TensorInfo], cursor: Cursor) -> None:
    expected = cursor.position
    for info in tensors:
        if info.offset != expected:
            what = "overlaps the tensor before it" if info.offset < expected else "leaves a hole before it"
            where = f"{cursor.file}, tensor {info.name!r:.200}, offset {info.offset}"
            raise FormatError(f"the tensor {what}: offset {expected} was expected", where=where)
        expected += info.nbytes
    if expected != cursor.end:
        raise FormatError(
            f"the tensors end at byte {expected}, but the file at {cursor.end}",
            where=cursor.file,
            hint="the file is cut short; pull it again" if expected > cursor.end else "the file has extra bytes",
        )
