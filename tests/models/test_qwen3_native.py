"""The model on native kernels: transformers' logits in fp32, and the same bits for a token in whatever company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.config import load_config
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.packing import Packing
from qwill.weights import load_model

pytest.importorskip("qwill._native", reason="the native kernels were not built")
if native_ops() is None:
    pytest.skip("QWILL_OPS=reference", allow_module_level=True)

CPU = torch.device("cpu")
KINDS = [
    "qwen3",
    "qwen3-untied",
    "qwen3-odd-heads",
    "qwen3-one-kv-head",
    "qwen3-biases",
    "qwen3-yarn",
    "qwen2",
    "llama",
]
COUNT = 37


def load(folder: Path, packing: Packing) -> CausalLM:
    with open_checkpoint(folder) as checkpoint:
        return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU, packing=packing)


def cache_for(model: CausalLM, dtype: torch.dtype = torch.float32) -> KVCache:
    c = model.config
    cache = KVCache.empty((c.num_layers, 64, 8, c.num_kv_heads, c.head_dim), dtype=dtype, device=CPU)
    cache.keys.view(torch.uint8).fill_(0xFF)  # NaN: a slot that is read before it is written must show
    return cache


def random_ids(count: int) -> Tensor:
    return torch.randint(0, 311, (count,), generator=torch.Generator().manual_seed(count))


def in_chunks(model: CausalLM, ids: Tensor, cache: KVCache, size: int, blocks: list[int]) -> Tensor:
    """Logits of every position (T, V), `size` tokens at a time."""
    rows = []
    for start in range(0, len(ids), size):
        count = min(size, len(ids) - start)
        rows.append(
            model(ids[start : start + count], Batch.build([NewTokens(start, count, blocks, count)], cache, CPU))
        )
    return torch.cat(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_in_fp32(kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any) -> None:
    folder = tiny_checkpoint(kind)
    model, ids = load(folder, Packing(torch.float32)), random_ids(COUNT)
    want = hf_model(folder)(ids[None]).logits[0]
    for size in (COUNT, 1):
        got = in_chunks(model, ids, cache_for(model), size, [9, 3, 1, 0, 7])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_bf16_weights_and_cache_stay_near_transformers(
    kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any
) -> None:
    """Activations are fp32, so the logits lie nearer to the fp32 model with rounded weights than to bf16 arithmetic."""
    folder = tiny_checkpoint(kind)
    model, ids = load(folder, Packing(torch.bfloat16)), random_ids(COUNT)
    oracle = hf_model(folder, torch.bfloat16).float()
    want = oracle(ids[None]).logits[0]
    got = in_chunks(model, ids, cache_for(model, torch.bfloat16), 5, [9, 3, 1, 0, 7])
    torch.testing.assert_close(got, want, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    "packing", [Packing(torch.bfloat16), *(Packing(torch.float32, q) for q in ("none", "int8", "int4"))]
)
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_token_has_the_same_bits_under_any_chunking(
    tiny_checkpoint: Callable[..., Path], packing: Packing, kv_dtype: torch.dtype
) -> None:
    model, ids = load(tiny_checkpoint("qwen3"), packing), random_ids(COUNT)
    whole = in_chunks(model, ids, cache_for(model, kv_dtype), COUNT, [9, 3, 1, 0, 7])
    assert whole.isfinite().all()
    for size in (1, 2, 3, 5, 7, 16):
        assert torch.equal(in_chunks(model, ids, cache_for(model, kv_dtype), size, [5, 4, 30, 20, 10]), whole)


@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_token_has_the_same_bits_in_a_batch_of_32_and_on_any_number_of_threads(
    tiny_checkpoint: Callable[..., Path], quant: str, threads: int
) -> None:
    model = load(tiny_checkpoint("qwen3"), Packing(torch.float32, quant))
    native = native_ops()
    assert native is not None
    lengths = [1 + 3 * i % 15 for i in range(32)]
    prompts = [random_ids(length) for length in lengths]
    alone = torch.cat([in_chunks(model, ids, cache_for(model), len(ids), [1, 0])[-1:] for ids in prompts])
    before = native.threads
    try:
        native.set_threads(threads)
        for size in (2, 5, 32):
            parts = [NewTokens(0, len(ids), [2 * i, 2 * i + 1]) for i, ids in enumerate(prompts[:size])]
            got = model(torch.cat(prompts[:size]), Batch.build(parts, cache_for(model), CPU))
            assert torch.equal(got, alone[:size])
    finally:
        native.set_threads(before)


def test_greedy_tokens_of_int8_weights_are_those_of_the_floats_where_the_choice_is_clear(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder, ids = tiny_checkpoint("qwen3"), random_ids(COUNT)
    exact, rough = (load(folder, Packing(torch.float32, quant)) for quant in ("none", "int8"))
    want, got = (in_chunks(model, ids, cache_for(model), COUNT, [0, 1, 2, 3, 4]) for model in (exact, rough))
    top = want.topk(2).values
    clear = top[:, 0] - top[:, 1] > 2 * (got - want).abs().max()
    assert clear.sum() > COUNT / 4
    assert torch.equal(got.argmax(1)[clear], want.argmax(1)[clear])
