"""A checkpoint tensor's rows as numbers, some at a time, so that temporaries stay small. Knows no model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qwill.errors import WeightsError
from qwill.formats import Checkpoint, TensorInfo
from qwill.formats.dequantize import DEQUANTIZABLE, dequantize
from qwill.quantization import FORMATS, unpacked_rows
from qwill.quantized_checkpoint import stored_part

__all__ = ["TORCH_DTYPES", "half_split_order", "raw_rows", "row_bytes", "values_of_rows"]

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types of a checkpoint that PyTorch has too."""


def row_bytes(info: TensorInfo) -> int:
    """Bytes of one row in the file. A vector's elements are its rows."""
    return info.nbytes // info.shape[0]


def raw_rows(checkpoint: Checkpoint, info: TensorInfo, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """The bytes of rows `start` … `stop`, a view of the file."""
    size = row_bytes(info)
    return checkpoint.raw(info.name)[start * size : stop * size]


def values_of_rows(checkpoint: Checkpoint, info: TensorInfo, start: int, stop: int) -> Tensor:
    """Rows `start` … `stop`: a copy in the tensor's own dtype, or dequantized to fp32.

    Raises:
        WeightsError: the type is not implemented.
        FormatError: the data break the type's rules.
    """
    if info.dtype in FORMATS:
        return unpacked_rows(stored_part(info), info.shape[1], start, stop)
    raw, shape = raw_rows(checkpoint, info, start, stop), (stop - start, *info.shape[1:])
    if info.dtype in TORCH_DTYPES:
        copy = torch.empty(len(raw), dtype=torch.uint8)
        copy.numpy()[:] = raw  # by way of numpy, because torch warns of read-only memory
        return copy.view(TORCH_DTYPES[info.dtype]).view(shape)
    if info.dtype not in DEQUANTIZABLE:
        raise WeightsError(f"dtype {info.dtype} is not implemented", where=f"{info.file}, tensor {info.name}")
    return torch.from_numpy(dequantize(raw, info.dtype, shape))


def half_split_order(rows: int, head_dim: int) -> Tensor:
    """The order that undoes GGUF's, of q and k for interleaved rotary positions: rows 0 2 4 … 1 3 5 … of each head."""
    return torch.arange(rows).view(-1, head_dim // 2, 2).transpose(1, 2).flatten()
