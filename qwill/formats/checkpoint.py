"""What both readers return: named tensors over read-only memory maps.

Knows nothing of a file's syntax, and reads no tensor data until `Checkpoint.raw` is called.

Caveat of every memory map: if another process shortens a file that is open here, touching the lost pages ends this
process with SIGBUS. No check can prevent it, so model files must be replaced by rename and never rewritten in place;
our own downloads keep to that.
"""

from __future__ import annotations

import difflib
import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from qwill.errors import FormatError, ModelNotFoundError, WeightsError

__all__ = ["Checkpoint", "MappedFile", "TensorInfo"]

_NO_BYTES = np.frombuffer(b"", dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's place in a file.

    Attributes:
        dtype: a name of the safetensors format ("BF16") or of GGUF ("Q4_K").
        shape: PyTorch order: (out_features, in_features).
        offset: bytes from the start of `file` to the first byte of the data.
        nbytes: bytes of the data; checked to lie inside the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class MappedFile:
    """A regular file, mapped read-only.

    Raises:
        ModelNotFoundError: when there is no such file.
        FormatError: when it is not a regular file (a FIFO would block, a device never ends), empty, or not readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise ModelNotFoundError("there is no such file", where=str(path)) from None
        except OSError as error:
            raise FormatError(f"the file cannot be opened: {error.strerror}", where=str(path)) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError("not a regular file", where=str(path))
            self.size = status.st_size
            if self.size == 0:
                raise FormatError("the file is empty", where=str(path), hint="the download broke off; pull it again")
            self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FormatError(f"the file cannot be mapped: {error.strerror}", where=str(path)) from None
        finally:
            os.close(descriptor)

    @property
    def map(self) -> mmap.mmap:
        """The memory map.

        Raises:
            FormatError: after `close`.
        """
        if self._map is None:
            raise FormatError("the checkpoint is closed", where=str(self.path))
        return self._map

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Read-only uint8 view of a range that was checked to lie inside the file."""
        data = self.map
        return np.frombuffer(data, dtype=np.uint8, count=nbytes, offset=offset) if nbytes else _NO_BYTES

    def release(self, offset: int, nbytes: int) -> None:
        """Tell the system that these pages can leave memory; they are read again when touched again."""
        if not nbytes or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = offset - offset % mmap.PAGESIZE
        self.map.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def close(self) -> None:
        """Drop the map. Views that are still in use keep it alive until they are gone."""
        data, self._map = self._map, None
        if data is not None:
            try:
                data.close()
            except BufferError:
                del data  # a view is in use: the map goes with the last of them


class Checkpoint:
    """Named tensors of one model: a folder of safetensors files, or one GGUF file. A context manager.

    Attributes:
        path: the file; for shards that an index lists, their folder.
        format: "safetensors" or "gguf".
        tensors: name, exactly as in the file -> where it is.
        metadata: GGUF key-values (arrays as list of str or read-only numpy array), or safetensors' `__metadata__`.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        *,
        tensors: dict[str, TensorInfo],
        metadata: dict[str, Any],
        files: Mapping[Path, MappedFile],
    ) -> None:
        self.path = path
        self.format = format
        self.tensors = tensors
        self.metadata = metadata
        self._files = dict(files)

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors, in the order in which they were opened."""
        return list(self._files)

    def _find(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            near = difflib.get_close_matches(name, self.tensors, n=1)
            raise WeightsError(
                f"there is no tensor {name!r}", where=str(self.path), hint=f"did you mean {near[0]}?" if near else ""
            )
        return info

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes: shape (nbytes,), uint8, read-only, a view of the file (nothing is copied).

        Raises:
            WeightsError: when there is no such tensor.
            FormatError: when the checkpoint was closed.
        """
        info = self._find(name)
        return self._files[info.file].view(info.offset, info.nbytes)

    def release(self, name: str) -> None:
        """Tell the system that the tensor's pages are not needed for now; keeps the peak of resident memory low.

        A view from `raw` stays valid: its pages are read again when touched.
        """
        info = self._find(name)
        self._files[info.file].release(info.offset, info.nbytes)

    def close(self) -> None:
        """Close the files. May be called twice."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
