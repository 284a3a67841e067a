"""A replayed step gives the logits of a computed one, to the bit, however the contexts grow and change places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwill.batch import Batch, KVCache, NewTokens
from qwill.config import load_config
from qwill.errors import TensorError
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.ops import native_ops
from qwill.packing import Packing
from qwill.weights import load_model

pytest.importorskip("qwill._native", reason="the native kernels were not built")
if native_ops() is None:
    pytest.skip("QWILL_OPS=reference", allow_module_level=True)
from qwill.replay import DecodeReplay

CPU = torch.device("cpu")
BLOCKS, SIZE = 48, 4


def load(folder: Path, packing: Packing) -> CausalLM:
    with open_checkpoint(folder) as checkpoint:
        return load_model(checkpoint, load_config(folder), dtype=torch.float32, device=CPU, packing=packing)


def empty_cache(model: CausalLM) -> KVCache:
    c = model.config
    cache = KVCache.empty((c.num_layers, BLOCKS, SIZE, c.num_kv_heads, c.head_dim), dtype=torch.bfloat16, device=CPU)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache


def replay_for(model: CausalLM, cache: KVCache, size: int) -> DecodeReplay:
    native = native_ops()
    assert native is not None
    return DecodeReplay(native, model, cache, num_requests=size, num_tokens=size, vocab_size=model.config.vocab_size)


@pytest.mark.parametrize(
    "kind", ["qwen3", "qwen3-untied", "qwen3-odd-heads", "qwen3-biases", "qwen3-yarn", "qwen2", "llama"]
)
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_replayed_steps_equal_computed_ones_to_the_bit(
    kind: str, quant: str, tiny_checkpoint: Callable[..., Path]
) -> None:
    model = load(tiny_checkpoint(kind), Packing(torch.float32, quant))
    caches = empty_cache(model), empty_cache(model)
    tables = [[5, 1, 9, 7, 11, 13, 2], [30, 3, 4, 6, 8, 10, 12], [40, 41, 42, 20, 21, 22, 23]]
    replay = replay_for(model, caches[0], 3)
    generator = torch.Generator().manual_seed(1)
    for step in range(22):
        ids = torch.randint(0, 311, (3,), generator=generator)
        lengths = (step, max(step - 4, 0), step)  # the second request waits at its first token for a while
        parts = [NewTokens(length, 1, table) for length, table in zip(lengths, tables, strict=True)]
        want = model(ids, Batch.build(parts, caches[1], CPU))
        got = replay.run(ids.tolist(), parts)
        assert torch.equal(got, want), step


def test_a_request_that_takes_another_place_brings_its_own_blocks(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"), Packing(torch.float32, "int8"))
    cache = empty_cache(model)
    replay = replay_for(model, cache, 1)
    first = [NewTokens(i, 1, [3, 2]) for i in range(6)]
    alone = [replay.run([i], [part]).clone() for i, part in enumerate(first)]
    for i in range(6):
        replay.run([300 - i], [NewTokens(i, 1, [7, 9])])
    again = [replay.run([i], [NewTokens(i, 1, [11, 12])]).clone() for i in range(6)]
    assert torch.equal(torch.cat(alone), torch.cat(again))


def test_blocks_that_are_added_to_a_table_are_seen(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"), Packing(torch.float32))
    replay, other = replay_for(model, empty_cache(model), 1), empty_cache(model)
    table: list[int] = []
    for i in range(3 * SIZE):
        if i % SIZE == 0:
            table.append(17 - i)
        part = NewTokens(i, 1, table)
        assert torch.equal(replay.run([i], [part]), model(torch.tensor([i]), Batch.build([part], other, CPU)))


@pytest.mark.parametrize(
    ("token_id", "start", "table"),
    [
        (-1, 0, [1]),
        (311, 0, [1]),
        (2**40, 0, [1]),
        (5, SIZE, [1]),
        (5, -1, [1]),
        (5, 0, []),
        (5, 0, [BLOCKS]),
        (5, 0, [-1]),
    ],
)
def test_what_a_kernel_must_not_follow_is_refused(
    tiny_checkpoint: Callable[..., Path], token_id: int, start: int, table: list[int]
) -> None:
    model = load(tiny_checkpoint("qwen3"), Packing(torch.float32))
    with pytest.raises(TensorError):
        replay_for(model, empty_cache(model), 1).run([token_id], [NewTokens(start, 1, table)])
