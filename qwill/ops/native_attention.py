"""Paged attention in native code: checks the tensors, then hands their memory to the kernel.

Formula and contract stand in `qwill.ops.attention`. Every length, block and slot that the kernel follows has been
compared with the memory behind it here or in `Batch.checked`. Knows no model, and not how an engine comes to be.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

import qwill._native as _native
from qwill.batch import Batch, KVCache
from qwill.errors import TensorError

__all__ = ["Engine", "attention"]

CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Numbers of `CacheType` in csrc/kernels.h."""


class Engine(Protocol):
    """What native ops run on: a pool of threads, kernels of one instruction set, and a program to record in or None."""

    pool: Any
    kernels: Any

    @property
    def program(self) -> Any:
        """Where calls are kept, or None."""
        ...

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Uninitialized fp32 memory for a result."""
        ...


def attention(engine: Engine, q: Tensor, k: Tensor, v: Tensor, batch: Batch, *, layer: int) -> Tensor:
    """Causal grouped-query attention; see `qwill.ops.attention`. q (T, Hq, D), k and v (T, Hkv, D) -> (T, Hq, D).

    All fp32; tokens may lie any distance apart, so that q, k and v can be views of one matrix. The cache is fp32, bf16
    or int8. A recorded program reads the batch's tensors anew each time it runs: T, B and the table's width stay.

    Raises TensorError for tensors that the kernel cannot take, before anything is computed or written.
    """
    _check_rows(q, k, v)
    _check_metadata(batch, len(q))
    T, Hq, D = q.shape
    Hkv = k.shape[1]
    cache = None if batch.kv_cache is None else _cache_layer(batch.kv_cache, layer, (Hkv, D))
    out = engine.empty((T, Hq, D))
    _native.attention(
        engine.pool,
        engine.program,
        engine.kernels,
        sizes=(T, len(batch.context_lens), Hkv, Hq // Hkv, D),
        scale=1 / math.sqrt(D),
        qkv=[(x.data_ptr(), x.stride(0)) for x in (q, k, v)],
        out=out.data_ptr(),
        metadata=(batch.query_start.data_ptr(), batch.context_lens.data_ptr(), batch.slot_mapping.data_ptr()),
        tables=(batch.block_tables.data_ptr(), batch.block_tables.stride(0), batch.block_tables.shape[1]),
        cache=cache,
    )
    return out


def _require(holds: bool, problem: str, hint: str = "") -> None:
    if not holds:
        raise TensorError(problem, where="attention", hint=hint)


def _check_rows(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        _require(x.dim() == 3, f"{name} is {tuple(x.shape)}, not (T, heads, D)")
        _require(
            x.dtype == torch.float32 and x.device.type == "cpu", f"{name} is {x.dtype} on {x.device}, not fp32 on cpu"
        )
        _require(0 not in x.shape, f"{name} is empty: {tuple(x.shape)}")
        _, heads, D = x.shape
        ends_meet = (D == 1 or x.stride(2) == 1) and (heads == 1 or x.stride(1) == D)
        _require(ends_meet, f"the heads of {name} do not lie end to end: strides {x.stride()}", "make it contiguous")
    _require(k.shape == v.shape, f"k is {tuple(k.shape)} and v is {tuple(v.shape)}")
    fits = len(q) == len(k) and q.shape[2] == k.shape[2] and q.shape[1] % k.shape[1] == 0
    _require(fits, f"q is {tuple(q.shape)} and k is {tuple(k.shape)}: not the same T, D and a multiple of the heads")


def _check_metadata(batch: Batch, T: int) -> None:
    for name, dtype, dimensions in (
        ("query_start", torch.int32, 1),
        ("context_lens", torch.int32, 1),
        ("slot_mapping", torch.int64, 1),
        ("block_tables", torch.int32, 2),
    ):
        x: Tensor = getattr(batch, name)
        fits = x.dtype == dtype and x.dim() == dimensions and x.device.type == "cpu"
        _require(fits, f"{name} is {x.dtype} {tuple(x.shape)} on {x.device}, not {dtype} with {dimensions} dimensions")
        _require(x.shape[-1] <= 1 or x.stride(-1) == 1, f"the entries of {name} do not lie end to end")
    _require(len(batch.positions) == T, f"q has {T} tokens and the batch {len(batch.positions)}")
    assert batch.checked


def _cache_layer(cache: KVCache, layer: int, heads: tuple[int, int]) -> Any:
    """The memory of one layer. `heads` is (Hkv, D) of this step's keys."""
    shape = cache.keys.shape
    _require(cache.values.shape == shape, f"keys are {tuple(shape)} and values {tuple(cache.values.shape)}")
    _require(len(shape) == 5 and tuple(shape[3:]) == heads, f"the cache is {tuple(shape)} and k's (Hkv, D) {heads}")
    _require(0 <= layer < shape[0], f"there is no layer {layer} in a cache of {shape[0]}")
    _require(cache.keys.dtype == cache.values.dtype, f"keys are {cache.keys.dtype} and values {cache.values.dtype}")
    _require(cache.keys.dtype in CACHE_TYPES, f"the cache is {cache.keys.dtype}", "use float32, bfloat16 or int8")
    scales = [cache.key_scales, cache.value_scales]
    for scale in scales:
        given = scale is not None and scale.shape == shape[:4] and scale.dtype == torch.float32
        _require(
            given == (cache.keys.dtype == torch.int8), "int8 needs fp32 scales (layers, blocks, S, Hkv), others none"
        )
    for x in (cache.keys, cache.values, *(scale for scale in scales if scale is not None)):
        _require(x.is_contiguous() and x.device.type == "cpu", "the cache is not contiguous memory on cpu")
    return _native.CacheLayer(
        keys=cache.keys[layer].data_ptr(),
        values=cache.values[layer].data_ptr(),
        key_scales=0 if scales[0] is None else scales[0][layer].data_ptr(),
        value_scales=0 if scales[1] is None else scales[1][layer].data_ptr(),
        block_size=shape[2],
        type=CACHE_TYPES[cache.keys.dtype],
    )
