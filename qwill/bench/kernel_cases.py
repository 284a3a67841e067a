"""The ops that `bench kernels` times, with data at the shapes of Qwen3-0.6B. Times nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from qwill.batch import Batch, KVCache, NewTokens
from qwill.quantization import PackedPart, PackedWeight, pack_dense, quantize_weight

if TYPE_CHECKING:
    from qwill.ops.native import NativeOps

__all__ = ["Case", "cases"]

C, HQ, HKV, D, F, V = 1024, 16, 8, 128, 3072, 151936
MATRICES = {
    "qkv_proj": (C, (HQ + 2 * HKV) * D),
    "o_proj": (HQ * D, C),
    "gate_up_proj": (C, 2 * F),
    "down_proj": (F, C),
    "lm_head": (C, V),
}
"""Inputs and outputs of each linear layer."""
WEIGHTS = ("int4", "int8", "bfloat16")
UNCACHED_BYTES = 1 << 28
"""So much memory is read in turn that no cache still holds what is read again."""
SMALL_OP_COPIES = 200
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """An op to be timed: `run(i)` calls it on the i-th of `copies` sets of data."""

    op: str
    weights: str
    tokens: int
    nbytes: int
    """Bytes that one call has to read and write."""
    operations: int
    """Multiplications and additions of one call; 0 where they are not what it is about."""
    copies: int
    run: Callable[[int], object]
    uncached: bool = False
    """Whether the data comes from memory, so that the read bandwidth is the limit."""


def cases(ops: NativeOps, prompt_tokens: int, context: int) -> list[Callable[[], Case]]:
    """Makers of every case: for one token that looks back over `context`, and for a prompt."""
    makers: list[Callable[[], Case]] = []
    for tokens in (1, prompt_tokens):
        for weights in WEIGHTS:
            for name, (inputs, outputs) in MATRICES.items():
                if tokens == 1 or name != "lm_head":  # of a prompt only the last token needs logits
                    makers.append(partial(_linear, ops, name, weights, (tokens, inputs, outputs)))
        makers.append(partial(_attention, ops, tokens, context if tokens == 1 else tokens))
        makers += [partial(maker, ops, tokens) for maker in (_embedding, _rms_norm, _norm_rope, _angles, _silu_and_mul)]
    return makers


def _linear(ops: NativeOps, name: str, weights: str, shape: tuple[int, int, int]) -> Case:
    tokens, inputs, outputs = shape
    part = _rows_of(weights, inputs, outputs)
    copies = _copies(part.data.nbytes) if tokens == 1 else 1
    data = part.data.repeat(copies).view(copies, -1)
    packed = [PackedWeight(inputs, (PackedPart(part.format, outputs, one),)) for one in data]
    x = torch.randn(tokens, inputs)
    return Case(
        f"linear {name}",
        weights,
        tokens,
        nbytes=part.data.nbytes + 4 * tokens * (inputs + outputs),
        operations=2 * tokens * inputs * outputs,
        copies=copies,
        run=lambda i: ops.linear(x, packed[i]),
        uncached=tokens == 1,
    )


def _rows_of(weights: str, inputs: int, outputs: int) -> PackedPart:
    """`outputs` packed rows: a few random ones, again and again."""
    rows = 64
    few = torch.randn(rows, inputs) / inputs**0.5
    part = pack_dense(few.bfloat16()) if weights == "bfloat16" else quantize_weight(few, weights, sensitive=False)
    return PackedPart(part.format, outputs, part.data.repeat(outputs // rows))


def _copies(nbytes: int) -> int:
    return max(2, -(-UNCACHED_BYTES // nbytes))


def _attention(ops: NativeOps, tokens: int, context: int) -> Case:
    """The last `tokens` of a context, with a bf16 cache."""
    blocks = -(-context // BLOCK_SIZE)
    nbytes = context * HKV * D * 2 * 2
    copies = _copies(nbytes) if tokens == 1 else 1
    shape = (copies, blocks, BLOCK_SIZE, HKV, D)
    cache = KVCache.empty(shape, dtype=torch.bfloat16, device=torch.device("cpu"))
    for half in (cache.keys, cache.values):
        half.normal_()
    batch = Batch.build([NewTokens(context - tokens, tokens, range(blocks))], cache, torch.device("cpu"))
    q, k, v = torch.split(torch.randn(tokens, HQ + 2 * HKV, D), [HQ, HKV, HKV], 1)
    seen = tokens * (2 * context - tokens + 1) // 2
    return Case(
        f"attention over {context}",
        "bfloat16",
        tokens,
        nbytes=nbytes + 4 * tokens * (2 * HQ + 2 * HKV) * D,
        operations=4 * HQ * D * seen,
        copies=copies,
        run=lambda i: ops.attention(q, k, v, batch, i),
        uncached=tokens == 1,
    )


def _small(op: str, tokens: int, nbytes: int, run: Callable[[], object], weights: str = "") -> Case:
    """What stands between the matrices: for one token mostly less than a microsecond, so it is called many times."""
    return Case(op, weights, tokens, nbytes, 0, SMALL_OP_COPIES if tokens == 1 else 1, lambda _: run())


def _embedding(ops: NativeOps, tokens: int) -> Case:
    table, ids = PackedWeight(C, (_rows_of("int8", C, V),)), torch.arange(tokens)
    return _small("embedding", tokens, tokens * C * 5, lambda: ops.embedding(ids, table), "int8")


def _rms_norm(ops: NativeOps, tokens: int) -> Case:
    x, weight = torch.randn(tokens, C), torch.ones(C)
    return _small("rms_norm", tokens, tokens * C * 8, lambda: ops.rms_norm(x, weight, 1e-6))


def _norm_rope(ops: NativeOps, tokens: int) -> Case:
    x, weight, angles = torch.randn(tokens, HQ, D), torch.ones(D), torch.randn(tokens, D)
    run = partial(ops.norm_rope, x, weight, 1e-6, angles.cos(), angles.sin())
    return _small("norm_rope", tokens, tokens * HQ * D * 8, run)


def _angles(ops: NativeOps, tokens: int) -> Case:
    positions, inv_freq = torch.arange(tokens), 1e6 ** -(torch.arange(0, D, 2) / D)
    return _small("rotary_angles", tokens, tokens * D * 8, lambda: ops.rotary_angles(positions, inv_freq, 1.0))


def _silu_and_mul(ops: NativeOps, tokens: int) -> Case:
    gate_up = torch.randn(tokens, 2 * F)
    return _small("silu_and_mul", tokens, tokens * F * 12, lambda: ops.silu_and_mul(gate_up))
