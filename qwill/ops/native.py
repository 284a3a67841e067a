"""The ops in native code: arguments are checked, memory for the result is taken, then a kernel of `csrc/` is called.

Formulas and contracts stand in `qwill.ops`; all tensors are fp32 on the CPU, weights are packed. While a step is being
recorded (`record`), results live in memory of the recording, and each call is also kept in its program.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from qwill import _native
from qwill.batch import Batch
from qwill.errors import SettingError, TensorError
from qwill.ops import reference
from qwill.ops.native_attention import attention
from qwill.ops.recording import Memory, Recording
from qwill.quantization import PackedWeight
from qwill.system import usable_cores

__all__ = ["NativeOps"]


class NativeOps:
    """The ops on one pool of threads, with the kernels of one instruction set."""

    def __init__(self, kernels: Any, threads: int) -> None:
        self.kernels = kernels
        self.pool = _native.Pool(threads)
        self._weights: weakref.WeakKeyDictionary[PackedWeight, Any] = weakref.WeakKeyDictionary()
        self._here = threading.local()  # a recording belongs to the thread that makes it

    @classmethod
    def create(cls, isa: str) -> NativeOps:
        """With the instruction set of this name, "" for the best one, and a thread for each core we may use.

        Raises:
            SettingError: the machine or the build does not have that instruction set.
        """
        try:
            kernels = _native.kernels(isa)
        except ValueError as error:
            raise SettingError(f"QWILL_ISA={isa!r:.100} does not run here", hint=f"one of: {error}") from error
        return cls(kernels, usable_cores())

    @property
    def isa(self) -> str:
        """The instruction set's name."""
        return str(self.kernels.isa)

    @property
    def threads(self) -> int:
        """How many threads compute, the caller's included."""
        return int(self.pool.threads)

    def set_threads(self, threads: int) -> None:
        """Compute on so many threads from now on."""
        if threads != self.threads:
            self.pool = _native.Pool(threads)

    @property
    def recording(self) -> Recording | None:
        """What this thread records at the moment."""
        return getattr(self._here, "recording", None)

    @property
    def program(self) -> Any:
        """The program that calls are kept in, or None."""
        return self.recording and self.recording.program

    @contextmanager
    def record(self, memory: Memory | None = None) -> Iterator[Recording]:
        """Keep all calls that this thread makes inside, to be made again on the same memory; see `Recording`."""
        recording = self._here.recording = Recording(_native.Program(), memory)
        try:
            yield recording
        finally:
            self._here.recording = None

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a result, fp32."""
        return self.recording.empty(shape) if self.recording else torch.empty(shape)

    def embedding(self, token_ids: Tensor, weight: PackedWeight) -> Tensor:
        """See `qwill.ops.embedding`."""
        _check(token_ids, "token_ids", torch.int64, (-1,))
        rows, columns = weight.shape
        _check_places(token_ids, "token_ids", rows)
        y = self.empty((len(token_ids), columns))
        _native.embedding(*self._place, self._packed(weight), token_ids.data_ptr(), len(token_ids), y.data_ptr())
        return y

    def linear(
        self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """See `qwill.ops.linear`. A weight that is not packed is multiplied by PyTorch."""
        if isinstance(weight, Tensor):
            return reference.linear(x, weight, bias, residual)
        N, K = weight.shape
        _check(x, "x", torch.float32, (-1, K))
        if bias is not None:
            _check(bias, "bias", torch.float32, (N,))
        if residual is not None:
            _check(residual, "residual", torch.float32, (len(x), N))
        y = self.empty((len(x), N))
        _native.linear(
            *self._place,
            self._packed(weight),
            x=x.data_ptr(),
            x_stride=K,
            tokens=len(x),
            y=y.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            residual_stride=N,
        )
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `qwill.ops.rms_norm`."""
        _check(weight, "weight", torch.float32, (x.shape[-1],))
        heads = x if x.dim() == 3 else x[:, None]
        y = self.empty(tuple(x.shape))
        _native.rms_norm(*self._place, *_head_rows(heads), weight.data_ptr(), eps, y.data_ptr())
        return y

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See `qwill.ops.rope`."""
        T, _, D = x.shape
        _check(cos, "cos", torch.float32, (T, D))
        _check(sin, "sin", torch.float32, (T, D))
        y = self.empty(tuple(x.shape))
        _native.rope(*self._place, *_head_rows(x), cos.data_ptr(), sin.data_ptr(), y.data_ptr())
        return y

    def norm_rope(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        """See `qwill.ops.norm_rope`."""
        T, _, D = x.shape
        _check(weight, "weight", torch.float32, (D,))
        _check(cos, "cos", torch.float32, (T, D))
        _check(sin, "sin", torch.float32, (T, D))
        y = self.empty(tuple(x.shape))
        rows = _head_rows(x)
        _native.norm_rope(*self._place, *rows, weight.data_ptr(), eps, cos.data_ptr(), sin.data_ptr(), y.data_ptr())
        return y

    def rotary_angles(self, positions: Tensor, inv_freq: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
        """See `qwill.ops.rotary_angles`."""
        _check(positions, "positions", torch.int64, (-1,))
        _check(inv_freq, "inv_freq", torch.float32, (-1,))
        T, D = len(positions), 2 * len(inv_freq)
        cos, sin = self.empty((T, D)), self.empty((T, D))
        _native.rotary_angles(
            self.pool,
            self.program,
            positions.data_ptr(),
            T,
            inv_freq.data_ptr(),
            D,
            amplitude,
            cos.data_ptr(),
            sin.data_ptr(),
        )
        return cos, sin

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See `qwill.ops.silu_and_mul`."""
        _check(gate_up, "gate_up", torch.float32, (-1, -1))
        T, both = gate_up.shape
        if both % 2:
            raise TensorError(f"gate_up has {both} columns, which are not two halves", where="silu_and_mul")
        y = self.empty((T, both // 2))
        _native.silu_and_mul(*self._place, gate_up.data_ptr(), T, both // 2, y.data_ptr())
        return y

    def attention(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, layer: int) -> Tensor:
        """See `qwill.ops.attention`."""
        return attention(self, q, k, v, batch, layer=layer)

    def rows(self, x: Tensor, places: Tensor) -> Tensor:
        """See `qwill.ops.rows`."""
        _check(x, "x", torch.float32, (-1, -1))
        _check(places, "places", torch.int64, (-1,))
        _check_places(places, "places", len(x))
        y = self.empty((len(places), x.shape[1]))
        R, C = y.shape
        _native.rows(self.pool, self.program, x.data_ptr(), places.data_ptr(), R, C, y.data_ptr())
        return y

    @property
    def _place(self) -> tuple[Any, Any, Any]:
        return self.pool, self.program, self.kernels

    def _packed(self, weight: PackedWeight) -> Any:
        """The kernels' view of a weight, made once; it holds addresses, so it lives as long as the weight."""
        known = self._weights.get(weight)
        if known is None:
            known = self._weights[weight] = _native.Weight()
            for part in weight.parts:
                f = part.format
                flags = [f.bits, f.zero, f.scales_per_group, f.super_scales, f.has_minimum]
                panel_bytes = f.panel_bytes(weight.columns)
                known.add(flags, part.data.data_ptr(), part.rows, weight.columns, panel_bytes)
        return known


def _check(x: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse what a kernel would read wrongly; -1 in `shape` stands for any size."""
    fits = x.dim() == len(shape) and all(want in (have, -1) for have, want in zip(x.shape, shape, strict=True))
    if fits and x.dtype is dtype and x.is_contiguous() and x.device.type == "cpu":
        return
    want = f"{dtype} of shape {shape} (-1: any), contiguous on the CPU"
    have = f"{x.dtype} of shape {tuple(x.shape)}, strides {x.stride()}, on {x.device}"
    raise TensorError(f"{name} is {have}; the op takes {want}".replace("torch.", ""), where=name)


def _check_places(places: Tensor, name: str, rows: int) -> None:
    """Refuse places outside a table of `rows`."""
    if len(places):
        low, high = (int(bound) for bound in places.aminmax())
        if low < 0 or high >= rows:
            raise TensorError(f"{name} {low} … {high} are not all rows of a table of {rows}", where=name)


def _head_rows(x: Tensor) -> tuple[int, int, int, int, int, int]:
    """x (T, H, size), perhaps a view into wider rows: address, sizes, strides."""
    if x.dtype is not torch.float32 or x.device.type != "cpu" or x.dim() != 3 or 0 in x.shape[1:] or x.stride(2) != 1:
        raise TensorError(f"x is {x.dtype} of shape {tuple(x.shape)} and strides {x.stride()} on {x.device}", where="x")
    return x.data_ptr(), *x.shape, x.stride(0), x.stride(1)
