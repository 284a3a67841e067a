"""Codes and scales in the order of a matrix, put into the order of the kernels, and back.

The order itself is described in `formats`. Numpy moves words between two strided views of the same numbers, some panels
at a time, so that temporaries stay in the processor's cache. Knows nothing of how codes are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qwill.errors import WeightsError
from qwill.formats.weight_formats import FORMATS, GROUP, PANEL_ROWS, RUN_GROUPS, WeightFormat, groups_of, runs_of

__all__ = ["Codes", "PackedPart", "pack", "pack_dense", "unpack", "unpack_dense"]

Array = npt.NDArray[Any]

PIECE = 1 << 18
"""Weights that are moved at a time."""

LOW_HALVES = np.uint32(0x0F0F0F0F)


@dataclass(frozen=True)
class Codes:
    """A quantized matrix that is not packed. N rows, K columns, G = ⌈K / 32⌉ groups.

    Attributes:
        codes: (N, K) uint8.
        scales: (N, G × scales per group), fp16; int8 where there are super scales.
        minima: as `scales`, where the format has minimums.
        super_scales: (N, ⌈G / 8⌉) fp16.
        super_minima: as `super_scales`, where the format has both.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None
    super_scales: Tensor | None = None
    super_minima: Tensor | None = None

    @classmethod
    def empty(cls, rows: int, columns: int, format: WeightFormat) -> Codes:
        """Unwritten codes and scales of the shapes and dtypes that a format has."""
        scales = (rows, groups_of(columns) * format.scales_per_group)
        supers = (rows, runs_of(columns))
        kind = torch.int8 if format.super_scales else torch.float16
        both = format.super_scales and format.has_minimum
        return cls(
            torch.empty((rows, columns), dtype=torch.uint8),
            torch.empty(scales, dtype=kind),
            torch.empty(scales, dtype=kind) if format.has_minimum else None,
            torch.empty(supers, dtype=torch.float16) if format.super_scales else None,
            torch.empty(supers, dtype=torch.float16) if both else None,
        )

    def rows(self, which: slice | Tensor) -> Codes:
        """Some rows, by a slice (views of these) or by their places (copies)."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part[which] for name, part in parts.items() if part is not None})


@dataclass(frozen=True)
class PackedPart:
    """Rows of one format, packed.

    Attributes:
        rows: how many there are; the last panel is filled up with zeros.
        data: (bytes,) uint8, contiguous.
    """

    format: WeightFormat
    rows: int
    data: Tensor


def pack(codes: Codes, format: WeightFormat) -> PackedPart:
    """Put codes and scales in the order of the kernels.

    Raises:
        WeightsError: a shape or dtype is not what the format needs, or a code has too many bits.
    """
    _check_codes(codes, format)
    rows, columns = codes.codes.shape
    data = torch.empty(format.nbytes(rows, columns), dtype=torch.uint8)
    for start, panels in _pieces(data, columns, format):
        plain = _Plain.of(codes.rows(slice(start, start + PANEL_ROWS * len(panels))), len(panels), format)
        for packed, same in plain.beside(panels, format):
            packed[...] = same
    return PackedPart(format, rows, data)


def unpack(part: PackedPart, columns: int) -> Codes:
    """The inverse of `pack`.

    Raises:
        WeightsError: the data are not as many bytes as rows, columns and format need, or hold no codes.
    """
    _check_part(part, columns, dense=False)
    codes = Codes.empty(part.rows, columns, part.format)
    for start, panels in _pieces(part.data, columns, part.format):
        plain = _Plain.empty(len(panels), columns, part.format)
        for packed, same in plain.beside(panels, part.format):
            same[...] = packed
        plain.copy_to(codes.rows(slice(start, start + PANEL_ROWS * len(panels))), part.format)
    return codes


def pack_dense(weight: Tensor) -> PackedPart:
    """Put a matrix of fp32 or bf16, (N, K), in the order of the kernels.

    Raises:
        WeightsError: it is not a matrix of one of these types.
    """
    if weight.ndim != 2 or weight.dtype not in (torch.float32, torch.bfloat16):
        raise WeightsError(f"a {weight.dtype} tensor of shape {tuple(weight.shape)} is not an fp32 or bf16 matrix")
    format = FORMATS[str(weight.dtype).removeprefix("torch.")]
    rows, columns = weight.shape
    data = torch.empty(format.nbytes(rows, columns), dtype=torch.uint8)
    plain = weight.contiguous().view(torch.uint8).numpy()
    for start, panels in _pieces(data, columns, format):
        held = plain[start : start + PANEL_ROWS * len(panels)]
        words = _padded(held, len(panels), format.panel_bytes(columns) // PANEL_ROWS)
        _dense_words(panels)[...] = words.view(np.uint32).reshape(len(panels), PANEL_ROWS, -1).transpose(0, 2, 1)
    return PackedPart(format, rows, data)


def unpack_dense(part: PackedPart, columns: int) -> Tensor:
    """The inverse of `pack_dense`: (N, K), fp32 or bf16.

    Raises:
        WeightsError: the data are not as many bytes as rows, columns and format need, or hold codes.
    """
    _check_part(part, columns, dense=True)
    dtype = torch.float32 if part.format.bits == 32 else torch.bfloat16
    weight = torch.empty((part.rows, columns), dtype=dtype)
    plain = weight.view(torch.uint8).numpy()
    for start, panels in _pieces(part.data, columns, part.format):
        words = np.ascontiguousarray(_dense_words(panels).transpose(0, 2, 1))
        held = plain[start : start + PANEL_ROWS * len(panels)]
        held[...] = words.view(np.uint8).reshape(len(panels) * PANEL_ROWS, -1)[: len(held), : held.shape[1]]
    return weight


@dataclass(frozen=True)
class _Plain:
    """Whole panels of codes in the order of a matrix, as numpy arrays; four or eight codes in a word.

    Rows are filled up to whole panels, columns to whole groups.
    """

    words: Array
    scales: Array
    minima: Array | None
    super_scales: Array | None
    super_minima: Array | None

    @classmethod
    def empty(cls, panels: int, columns: int, format: WeightFormat) -> _Plain:
        groups = groups_of(columns)
        codes = Codes.empty(panels * PANEL_ROWS, groups * GROUP, format)
        words = np.empty((panels * PANEL_ROWS, groups * GROUP * format.bits // 32), dtype=np.uint32)
        return cls(words, *_scale_arrays(codes))

    @classmethod
    def of(cls, codes: Codes, panels: int, format: WeightFormat) -> _Plain:
        columns = groups_of(codes.codes.shape[1]) * GROUP
        words = _padded(codes.codes.numpy(), panels, columns, format.zero).view(np.uint32)
        if format.bits == 4:
            words = words[:, 0::2] | words[:, 1::2] << np.uint32(4)
        scales = (None if array is None else _padded(array, panels, array.shape[1]) for array in _scale_arrays(codes))
        return cls(words, *scales)  # type: ignore[arg-type]

    def copy_to(self, codes: Codes, format: WeightFormat) -> None:
        words = self.words
        if format.bits == 4:
            words = np.empty((len(words), 2 * words.shape[1]), dtype=np.uint32)
            words[:, 0::2] = self.words & LOW_HALVES
            words[:, 1::2] = self.words >> np.uint32(4) & LOW_HALVES
        plain = (words.view(np.uint8), self.scales, self.minima, self.super_scales, self.super_minima)
        for array, target in zip(plain, (codes.codes.numpy(), *_scale_arrays(codes)), strict=True):
            if array is not None and target is not None:
                target[...] = array[: len(target), : target.shape[1]]

    def beside(self, panels: Array, format: WeightFormat) -> Iterator[tuple[Array, Array]]:
        """Pairs of views of one shape, into packed panels and into these arrays, that are to hold the same."""
        groups = self.scales.shape[1] // format.scales_per_group
        at = 0
        for first, runs, size in _equal_runs(groups, format):
            end = at + runs * (format.head_bytes + size * format.group_bytes)
            section = panels[:, at:end].reshape(len(panels), runs, -1)
            at = end
            head, body = section[:, :, None, : format.head_bytes], section[:, :, format.head_bytes :]
            body = body.reshape(len(panels), runs, size, format.group_bytes)
            for array, packed in self._in_body(body, format):
                yield _view(packed, array), _by_group(array, groups, first, (runs, size))
            for array, packed in self._in_head(head):
                yield _view(packed, array), _by_group(array, array.shape[1], first // RUN_GROUPS, (runs, 1))

    def _in_body(self, body: Array, format: WeightFormat) -> Iterator[tuple[Array, Array]]:
        codes_end, scales_end = format.code_bytes, format.code_bytes + format.scale_bytes
        yield self.words, body[..., :codes_end]
        yield self.scales, body[..., codes_end:scales_end]
        if self.minima is not None:
            yield self.minima, body[..., scales_end:]

    def _in_head(self, head: Array) -> Iterator[tuple[Array, Array]]:
        if self.super_scales is not None:
            yield self.super_scales, head[..., : 2 * PANEL_ROWS]
        if self.super_minima is not None:
            yield self.super_minima, head[..., 2 * PANEL_ROWS :]


def _scale_arrays(codes: Codes) -> tuple[Array, Array | None, Array | None, Array | None]:
    scales, *others = codes.scales, codes.minima, codes.super_scales, codes.super_minima
    minima, super_scales, super_minima = (None if other is None else other.numpy() for other in others)
    return scales.numpy(), minima, super_scales, super_minima


def _equal_runs(groups: int, format: WeightFormat) -> Iterator[tuple[int, int, int]]:
    """(first group, runs, groups in each): the full runs, then a shorter one. Without heads, all groups are one run."""
    size = RUN_GROUPS if format.super_scales else max(groups, 1)
    full = groups // size
    if full:
        yield 0, full, size
    if groups % size:
        yield full * size, 1, groups % size


def _view(packed: Array, like: Array) -> Array:
    """Bytes (P, runs, groups, bytes) as numbers (P, runs, groups, numbers of a row and group, 16 rows)."""
    return packed.view(like.dtype).reshape(*packed.shape[:3], -1, PANEL_ROWS)


def _by_group(array: Array, groups: int, first: int, shape: tuple[int, int]) -> Array:
    """(P × 16, groups × numbers) in the order of `_view`: the runs × groups of `shape` from group `first` on."""
    runs, size = shape
    panels = array.reshape(len(array) // PANEL_ROWS, PANEL_ROWS, groups, -1)[:, :, first : first + runs * size]
    return panels.reshape(len(panels), PANEL_ROWS, runs, size, -1).transpose(0, 2, 3, 4, 1)


def _padded(array: Array, panels: int, columns: int, fill: int = 0) -> Array:
    """The array with as many rows as `panels` have, and so many columns; itself, where it has them."""
    if array.shape == (panels * PANEL_ROWS, columns) and array.flags.c_contiguous:
        return array
    padded = np.full((panels * PANEL_ROWS, columns), fill, dtype=array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded


def _pieces(data: Tensor, columns: int, format: WeightFormat) -> Iterator[tuple[int, Array]]:
    """Some panels at a time: their first row, and their bytes (P, panel_bytes), a view of `data`."""
    panel_bytes = format.panel_bytes(columns)
    if not panel_bytes or not len(data):
        return
    panels = data.numpy().reshape(-1, panel_bytes)
    step = max(1, PIECE // (PANEL_ROWS * columns))
    for start in range(0, len(panels), step):
        yield start * PANEL_ROWS, panels[start : start + step]


def _dense_words(panels: Array) -> Array:
    return panels.view(np.uint32).reshape(len(panels), -1, PANEL_ROWS)


def _check_codes(codes: Codes, format: WeightFormat) -> None:
    if format.is_dense or codes.codes.ndim != 2:
        raise WeightsError(f"codes of shape {tuple(codes.codes.shape)} cannot have format {format.name}")
    rows, columns = codes.codes.shape
    want = Codes.empty(rows, columns, format)
    for field in fields(codes):
        have, needed = (_kind(getattr(each, field.name)) for each in (codes, want))
        if have != needed:
            raise WeightsError(f"{field.name} is {have}, but format {format.name} needs {needed}")
    if codes.codes.numel() and int(codes.codes.max()) >= 2**format.bits:
        raise WeightsError(f"a code is {int(codes.codes.max())}, but format {format.name} has {format.bits} bits")


def _kind(part: Tensor | None) -> str:
    return "missing" if part is None else f"{part.dtype} {tuple(part.shape)}".removeprefix("torch.")


def _check_part(part: PackedPart, columns: int, *, dense: bool) -> None:
    format, data = part.format, part.data
    if format.is_dense != dense:
        raise WeightsError(f"format {format.name} has {'codes' if dense else 'no codes'}")
    need = format.nbytes(part.rows, columns)
    if data.dtype != torch.uint8 or data.shape != (need,) or not data.is_contiguous():
        what = f"{part.rows} × {columns} weights of format {format.name} take {need} bytes in a row of uint8"
        raise WeightsError(f"{what}, but the data are {_kind(data)}")
