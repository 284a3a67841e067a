"""Packed weights in files: written once by `qwill quantize`, then used in place, straight from a memory map.

A folder as of any other model, whose config.json has a `quantization_config` and whose model.safetensors holds packed
matrices under the checkpoint's names (`qwill.formats.packed`); norms and biases stay as they were.
Knows no model: which tensors there are is its callers' business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from qwill.errors import FormatError, WeightsError
from qwill.formats import TensorInfo
from qwill.formats.dtypes import tensor_nbytes
from qwill.formats.packed import ALIGNMENT, packed_metadata, stored_bytes
from qwill.formats.weight_formats import FORMATS
from qwill.quantization import PackedPart

__all__ = ["StoredTensor", "stored_part", "write_weights"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is to be written.

    Attributes:
        dtype: a key of `FORMATS` for a packed matrix; for others a name of the safetensors format.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_packed(self) -> bool:
        """Whether it is a packed matrix."""
        return self.dtype in FORMATS

    @property
    def nbytes(self) -> int:
        """Bytes of its data, without padding."""
        if self.is_packed:
            return FORMATS[self.dtype].nbytes(*self.shape)
        return tensor_nbytes(self.dtype, self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes in the file."""
        return stored_bytes(self.nbytes) if self.is_packed else self.nbytes


def stored_part(info: TensorInfo) -> PackedPart:
    """A packed matrix of a checkpoint, in place: nothing is read or copied before it is used.

    The map is private: writing to the data would change this process's copy and never the file.

    Raises:
        WeightsError: the tensor is not packed.
        FormatError: the file is no longer as it was.
    """
    if info.dtype not in FORMATS:
        raise WeightsError(f"a tensor of type {info.dtype} is not packed", where=f"{info.file}, tensor {info.name}")
    try:
        # Mode "c": PyTorch warns of memory that cannot be written.
        data = np.memmap(info.file, np.uint8, "c", offset=info.offset, shape=(info.nbytes,))
    except (OSError, ValueError) as error:
        raise FormatError(f"the file cannot be mapped: {error}", where=str(info.file)) from None
    return PackedPart(FORMATS[info.dtype], info.shape[0], torch.from_numpy(np.asarray(data)))


def write_weights(path: Path, tensors: Sequence[StoredTensor], contents: Iterable[memoryview]) -> None:
    """Write a safetensors file. Packed matrices must come first, so that each starts at a multiple of 64 bytes.

    `contents` are the tensors' bytes in the same order; they are asked for one after another.

    Raises:
        WeightsError: the order is wrong, or a tensor has another number of bytes.
    """
    if any(later.is_packed and not tensor.is_packed for tensor, later in pairwise(tensors)):
        raise WeightsError("packed matrices come before other tensors in a file")
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor, data in zip(tensors, contents, strict=True):
            _write(file, tensor, data)


def _write(file: BinaryIO, tensor: StoredTensor, data: memoryview) -> None:
    if len(data) != tensor.nbytes:
        raise WeightsError(f"{tensor.name} has {len(data)} bytes, not {tensor.nbytes}")
    file.write(data)
    file.write(bytes(tensor.stored_bytes - tensor.nbytes))


def _header(tensors: Sequence[StoredTensor]) -> bytes:
    """Length and JSON, filled up with spaces so that the data start at a multiple of 64 bytes."""
    packed = {tensor.name: (tensor.dtype, tensor.shape[0], tensor.shape[1]) for tensor in tensors if tensor.is_packed}
    header: dict[str, Any] = {"__metadata__": packed_metadata(packed)}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.stored_bytes
        dtype, shape = ("U8", [end - start]) if tensor.is_packed else (tensor.dtype, list(tensor.shape))
        header[tensor.name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
