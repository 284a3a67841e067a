"""Which implementation of the ops runs: the native kernels, where they were built and apply, else plain PyTorch.

QWILL_OPS=native or reference forces one; QWILL_ISA names an instruction set. Both are read once, at the first use.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qwill.errors import SettingError
from qwill.ops import reference
from qwill.ops.observed import observers, watched
from qwill.quantization import PackedWeight

if TYPE_CHECKING:
    from qwill.ops.native import NativeOps

__all__ = ["native_ops", "ops_for", "ops_for_weight", "warn_if_not_built", "why_no_native_ops"]

BUILD_HINT = (
    "install a C++20 compiler (Debian: apt-get install g++), then `pip install --force-reinstall --no-deps qwill`"
)


def ops_for(tensor: Tensor) -> Any:
    """The ops for activations like `tensor`: native for fp32 on the CPU, the reference for everything else."""
    native = native_ops() if tensor.dtype is torch.float32 and tensor.device.type == "cpu" else None
    return _seen(native or reference)


def ops_for_weight(weight: Tensor | PackedWeight) -> Any:
    """The ops for a table: native where it is packed, since activations are fp32 there."""
    native = native_ops() if isinstance(weight, PackedWeight) else None
    return _seen(native or reference)


def _seen(ops: Any) -> Any:
    """The ops, behind whoever watches this thread (`qwill.ops.observed`)."""
    return watched(ops, "reference" if ops is reference else "native") if observers else ops


def why_no_native_ops() -> str:
    """Why native kernels do not run here, in one sentence; "" where they do."""
    if _choice() == "reference":
        return "QWILL_OPS=reference asks for the plain PyTorch ops"
    return "" if _extension() else "the native kernels were not built when qwill was installed"


@functools.cache
def warn_if_not_built() -> None:
    """Say, once in a process, that native kernels are missing and what to do; nothing where they are not wanted."""
    if _choice() == "auto" and not _extension():
        warnings.warn(f"running on PyTorch's ops, which is slower: {why_no_native_ops()}; {BUILD_HINT}", stacklevel=2)


@functools.cache
def native_ops() -> NativeOps | None:
    """The native ops of this process, or None where they were not built or not wanted.

    Raises:
        SettingError: QWILL_OPS or QWILL_ISA names something unknown, or native ops are asked for and missing.
    """
    reason = why_no_native_ops()
    if reason and _choice() == "native":
        raise SettingError(f"QWILL_OPS=native, but {reason}", hint=BUILD_HINT)
    if reason:
        return None
    native = importlib.import_module("qwill.ops.native")
    return native.NativeOps.create(os.environ.get("QWILL_ISA", ""))  # type: ignore[no-any-return]


def _choice() -> str:
    choice = os.environ.get("QWILL_OPS", "") or "auto"
    if choice not in ("auto", "native", "reference"):
        raise SettingError(f"QWILL_OPS={choice!r:.100} is not a known back end", hint="native or reference")
    return choice


@functools.cache
def _extension() -> bool:
    return importlib.util.find_spec("qwill._native") is not None
