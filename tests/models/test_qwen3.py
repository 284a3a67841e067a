"""The model against `transformers`, layer by layer, on tiny random checkpoints of every kind it must run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.config import load_config
from qwill.formats import open_checkpoint
from qwill.models.qwen3 import CausalLM
from qwill.weights import load_model

CPU = torch.device("cpu")
KINDS = [
    "qwen3",
    "qwen3-untied",
    "qwen3-odd-heads",
    "qwen3-one-kv-head",
    "qwen3-eps",
    "qwen3-biases",
    "qwen3-yarn",
    "qwen2",
    "qwen2-untied",
    "llama",
    "llama3-rope",
    "llama-linear-rope",
]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    with open_checkpoint(folder) as checkpoint:
        return load_model(checkpoint, load_config(folder), dtype=dtype, device=CPU)


def random_ids(count: int, seed: int = 0, vocab: int = 311) -> Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def whole(count: int) -> Batch:
    return Batch.build([NewTokens(0, count, num_logits=count)], None, CPU)


def empty_cache(model: CausalLM, blocks: int = 12, size: int = 16) -> KVCache:
    config = model.config
    shape = (config.num_layers, blocks, size, config.num_kv_heads, config.head_dim)
    cache = KVCache.empty(shape, dtype=model.model.norm.weight.dtype, device=CPU)
    cache.keys.fill_(torch.nan)  # a slot that is read before it is written must show
    cache.values.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any) -> None:
    folder = tiny_checkpoint(kind)
    ids = random_ids(70)
    with torch.no_grad():
        want = hf_model(folder)(ids[None]).logits[0]
    assert want.std() > 0.1
    torch.testing.assert_close(load(folder)(ids, whole(70)), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_every_layer_equals_transformers(kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any) -> None:
    folder = tiny_checkpoint(kind)
    ids = random_ids(33)
    with torch.no_grad():
        want = hf_model(folder)(ids[None], output_hidden_states=True).hidden_states
    model = load(folder)
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _m, args: seen.append(args[0])) for layer in model.model.layers]
    model(ids, whole(33))
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(model.model.layers)
    for layer, (ours, theirs) in enumerate(zip(seen, want, strict=False)):
        torch.testing.assert_close(ours, theirs[0], atol=1e-4, rtol=0, msg=lambda text, n=layer: f"layer {n}: {text}")


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-yarn", "llama3-rope"])
def test_positions_beyond_a_thousand_equal_transformers(
    kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any
) -> None:
    folder = tiny_checkpoint(kind)
    ids = random_ids(1500)
    with torch.no_grad():
        want = hf_model(folder)(ids[None]).logits[0, 1000:]
    torch.testing.assert_close(load(folder)(ids, whole(1500))[1000:], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7])
def test_chunked_prefill_equals_whole(chunk: int, tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"))
    ids = random_ids(41)
    want = model(ids, whole(41))
    cache, rows = empty_cache(model), []
    for start in range(0, 41, chunk):
        count = min(chunk, 41 - start)
        part = NewTokens(start, count, [7, 2, 9], num_logits=count)
        rows.append(model(ids[start : start + count], Batch.build([part], cache, CPU)))
    torch.testing.assert_close(torch.cat(rows), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("blocks", [[0, 1, 2], [5, 3, 11]], ids=["consecutive", "scattered"])
def test_mixed_batch_equals_single_runs(blocks: list[int], tiny_checkpoint: Callable[..., Path]) -> None:
    """Prefill, chunked prefill and decode of three requests in one packed step."""
    model = load(tiny_checkpoint("qwen3"))
    sequences = [random_ids(n, seed=n) for n in (20, 33, 1)]
    tables: Sequence[list[int]] = [blocks, [4, 8, 6], [10]]
    done = [19, 30, 0]  # computed before: all but the last, all but three, none
    cache = empty_cache(model)
    for ids, table, count in zip(sequences, tables, done, strict=True):
        if count:
            model(ids[:count], Batch.build([NewTokens(0, count, table)], cache, CPU))
    parts = [
        NewTokens(count, len(ids) - count, table) for ids, table, count in zip(sequences, tables, done, strict=True)
    ]
    packed = torch.cat([ids[count:] for ids, count in zip(sequences, done, strict=True)])
    got = model(packed, Batch.build(parts, cache, CPU))
    want = torch.stack([model(ids, whole(len(ids)))[-1] for ids in sequences])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_logits_are_computed_only_for_the_rows_asked_for(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"))
    sizes: list[int] = []
    hook = model.lm_head.register_forward_pre_hook(lambda _m, args: sizes.append(len(args[0])))
    model(random_ids(50), Batch.build([NewTokens(0, 50)], None, CPU))
    hook.remove()
    assert sizes == [1]


def test_a_later_token_never_changes_an_earlier_logit(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"))
    ids = random_ids(30)
    changed = ids.clone()
    changed[20] = (changed[20] + 1) % 311
    before, after = model(ids, whole(30)), model(changed, whole(30))
    torch.testing.assert_close(before[:20], after[:20], atol=1e-5, rtol=0)
    assert not torch.equal(before[20:], after[20:])


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_bfloat16_stays_as_close_to_float32_as_transformers_does(
    kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Any
) -> None:
    """Both round at the same places, so neither may be further from the fp32 truth than the other by much."""
    folder = tiny_checkpoint(kind)
    ids = random_ids(64)
    with torch.no_grad():
        truth = hf_model(folder)(ids[None]).logits[0]
        theirs = hf_model(folder, torch.bfloat16)(ids[None]).logits[0].float()
    ours = load(folder, torch.bfloat16)(ids, whole(64)).float()
    assert (ours - truth).abs().mean() <= 1.25 * (theirs - truth).abs().mean()


def test_decode_steps_do_not_allocate_more_as_the_context_grows(tiny_checkpoint: Callable[..., Path]) -> None:
    model = load(tiny_checkpoint("qwen3"))
    cache = empty_cache(model)
    ids = random_ids(160)
    model(ids[:20], Batch.build([NewTokens(0, 20, range(12))], cache, CPU))

    def allocated(position: int) -> int:
        batch = Batch.build([NewTokens(position, 1, range(12))], cache, CPU)
        batch.spans  # noqa: B018  (worked out before measuring)
        with torch.profiler.profile(profile_memory=True) as profile:
            model(ids[position : position + 1], batch)
        return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())

    for position in range(20, 160):
        if position not in (30, 150):
            model(ids[position : position + 1], Batch.build([NewTokens(position, 1, range(12))], cache, CPU))
    # Scores, one fp32 number per head and context token, are all that may grow; a copy of K or V would be 16 times it.
    scores = model.config.num_layers * model.config.num_heads * (150 - 30) * 4
    assert allocated(150) - allocated(30) <= scores
