"""Native attention against float64 softmax, for every instruction set; to the bit where only the cutting differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.errors import TensorError
from qwill.ops import reference

_native: Any = pytest.importorskip("qwill._native", reason="the native kernels are not built")
from qwill.ops.native_attention import attention  # noqa: E402

CPU = torch.device("cpu")
ISAS = _native.instruction_sets()
CACHES = [None, torch.float32, torch.bfloat16, torch.int8]
TOLERANCE = 2e-6
"""Of unit normal values, once the cache has rounded its keys and values."""


@dataclass
class Engine:
    """What the kernels run on; results start as NaN, so that one that is left out shows."""

    pool: Any
    kernels: Any
    program: Any = None

    @classmethod
    def of(cls, isa: str, threads: int = 1) -> Engine:
        return cls(_native.Pool(threads), _native.kernels(isa))

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.full(shape, math.nan)


@dataclass(frozen=True)
class Context:
    """One request's queries, keys and values from its first token on, and its blocks."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.q)


def context(length: int, heads: tuple[int, int], D: int, *, table: Sequence[int] = (), seed: int = 0) -> Context:
    """Random views of one (T, Hq + 2 Hkv, D) matrix. `heads` is (Hq, Hkv)."""
    qkv = torch.randn(length, heads[0] + 2 * heads[1], D, generator=torch.Generator().manual_seed(seed))
    return Context(*qkv.split([heads[0], heads[1], heads[1]], dim=1), tuple(table))


def empty_cache(blocks: int, S: int, c: Context, dtype: torch.dtype) -> KVCache:
    """Two layers that hold nothing but NaN, or in int8 codes with NaN scales."""
    cache = KVCache.empty((2, blocks, S, *c.k.shape[1:]), dtype=dtype, device=CPU)
    for x in (cache.keys, cache.values):
        x.fill_(99 if dtype == torch.int8 else math.nan)
    for scale in (cache.key_scales, cache.value_scales):
        if scale is not None:
            scale.fill_(math.nan)
    return cache


def step(engine: Engine, cache: KVCache | None, pieces: Sequence[tuple[Context, int, int]]) -> list[Tensor]:
    """One packed step: of each context, the tokens from `start` to `end`. Returns each piece's result."""
    # One piece stays a view of its matrix.
    parts = [[getattr(c, name)[start:end] for c, start, end in pieces] for name in "qkv"]
    q, k, v = (torch.cat(part) if len(part) > 1 else part[0] for part in parts)
    batch = Batch.build([NewTokens(start, end - start, c.table) for c, start, end in pieces], cache, CPU)
    out = attention(engine, q, k, v, batch, layer=1)
    return list(out.split([end - start for _, start, end in pieces]))


def by_parts(engine: Engine, cache: KVCache, c: Context, part: int) -> Tensor:
    """The whole context, `part` tokens a step."""
    steps = range(0, len(c), part)
    return torch.cat([step(engine, cache, [(c, start, min(start + part, len(c)))])[0] for start in steps])


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """float64: the last len(q) tokens of a context of len(k)."""
    per_kv = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(per_kv, dim=1) for x in (k, v))
    scores = torch.einsum("thd,nhd->htn", q.double(), k) / math.sqrt(q.shape[2])
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(len(k) - len(q) + 1)
    return torch.einsum("htn,nhd->thd", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


def rounded(cache: KVCache | None, c: Context) -> tuple[Tensor, Tensor]:
    """The keys and values that the cache of layer 1 holds of a context, as float64."""
    if cache is None:
        return c.k.double(), c.v.double()
    S = cache.block_size
    slots = [c.table[p // S] * S + p % S for p in range(len(c))]
    rows = [x[slots].double() for x in cache.layer(1)]
    if cache.key_scales is not None:
        rows = [x * s[slots].double()[..., None] for x, s in zip(rows, cache.scales(1), strict=True) if s is not None]
    return rows[0], rows[1]


def check(got: Tensor, cache: KVCache | None, c: Context) -> None:
    """The last len(got) tokens' results are those of the formula."""
    want = exact(c.q[len(c) - len(got) :], *rounded(cache, c))
    torch.testing.assert_close(got.double(), want, atol=TOLERANCE, rtol=TOLERANCE)


def scattered(count: int, *, of: int, seed: int = 0) -> list[int]:
    """Blocks in no order."""
    return torch.randperm(of, generator=torch.Generator().manual_seed(seed))[:count].tolist()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES[1:], ids=str)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 160, 255, 256, 257, 513])
def test_decode_and_prefill_equal_the_formula(isa: str, dtype: torch.dtype, length: int) -> None:
    c = context(length, (4, 2), 24, table=scattered(-(-length // 16), of=64), seed=length)
    cache = empty_cache(64, 16, c, dtype)
    engine = Engine.of(isa)
    check(step(engine, cache, [(c, 0, length)])[0], cache, c)
    check(step(engine, cache, [(c, length - 1, length)])[0], cache, c)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES, ids=str)
@pytest.mark.parametrize(
    ("heads", "D"),
    [((1, 1), 1), ((3, 3), 5), ((6, 2), 16), ((7, 1), 33), ((14, 2), 64), ((15, 5), 24), ((80, 1), 17), ((16, 8), 128)],
)
def test_any_heads_and_head_dim_equal_the_formula(
    isa: str, dtype: torch.dtype | None, heads: tuple[int, int], D: int
) -> None:
    c = context(41, heads, D, table=[3, 0, 5, 1, 7, 2], seed=D)
    cache = None if dtype is None else empty_cache(8, 8, c, dtype)
    check(step(Engine.of(isa), cache, [(c, 0, 41)])[0], cache, c)
    if cache is not None:
        check(step(Engine.of(isa), cache, [(c, 38, 41)])[0], cache, c)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES[1:], ids=str)
@pytest.mark.parametrize("S", [1, 2, 16, 128, 1024])
def test_a_mixed_step_equals_the_formula(isa: str, dtype: torch.dtype, S: int) -> None:
    lengths, starts = [300, 1, 270, 40], [299, 0, 200, 0]
    blocks = scattered(sum(-(-n // S) for n in lengths), of=sum(-(-n // S) for n in lengths) + 3)
    cs = []
    for i, n in enumerate(lengths):
        cs.append(context(n, (4, 2), 20, table=blocks[: -(-n // S)], seed=i))
        blocks = blocks[-(-n // S) :]
    cache = empty_cache(sum(-(-n // S) for n in lengths) + 3, S, cs[0], dtype)
    engine = Engine.of(isa, threads=2)
    step(engine, cache, [(c, 0, start) for c, start in zip(cs, starts, strict=True) if start])
    got = step(engine, cache, [(c, start, len(c)) for c, start in zip(cs, starts, strict=True)])
    for c, out in zip(cs, got, strict=True):
        check(out, cache, c)


@pytest.mark.parametrize("isa", ISAS)
def test_without_a_cache_each_request_sees_its_own_rows(isa: str) -> None:
    cs = [context(n, (4, 2), 20, seed=n) for n in (1, 300, 5, 47)]
    for c, out in zip(cs, step(Engine.of(isa), None, [(c, 0, len(c)) for c in cs]), strict=True):
        check(out, None, c)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    starts=st.lists(st.integers(0, 600), min_size=1, max_size=3),
    new=st.lists(st.integers(1, 70), min_size=3, max_size=3),
    heads=st.tuples(st.integers(1, 9), st.integers(1, 3)),
    D=st.integers(1, 70),
    S=st.sampled_from([1, 4, 16, 64]),
    dtype=st.sampled_from(CACHES[1:]),
)
def test_random_steps_equal_the_formula(
    isa: str, starts: list[int], new: list[int], heads: tuple[int, int], D: int, S: int, dtype: torch.dtype
) -> None:
    per_kv, Hkv = heads
    lengths = [start + count for start, count in zip(starts, new, strict=False)]
    needed = [-(-n // S) for n in lengths]
    blocks = scattered(sum(needed), of=sum(needed))
    cs = [
        context(n, (per_kv * Hkv, Hkv), D, table=blocks[sum(needed[:i]) : sum(needed[: i + 1])], seed=i)
        for i, n in enumerate(lengths)
    ]
    cache = empty_cache(sum(needed), S, cs[0], dtype)
    engine = Engine.of(isa)
    for c, start in zip(cs, starts, strict=True):
        if start:
            step(engine, cache, [(c, 0, start)])
    for c, out in zip(cs, step(engine, cache, [(c, s, len(c)) for c, s in zip(cs, starts, strict=True)]), strict=True):
        check(out, cache, c)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES[1:], ids=str)
def test_a_result_is_the_same_bits_however_the_prompt_is_cut(isa: str, dtype: torch.dtype) -> None:
    c = context(150, (4, 2), 48, table=range(10))
    whole = step(Engine.of(isa), empty_cache(10, 16, c, dtype), [(c, 0, 150)])[0]
    for part in (1, 2, 3, 5, 7, 16, 60, 128):
        assert torch.equal(by_parts(Engine.of(isa), empty_cache(10, 16, c, dtype), c, part), whole), part


@pytest.mark.parametrize("isa", ISAS)
def test_a_result_is_the_same_bits_with_and_without_a_cache(isa: str) -> None:
    c = context(275, (4, 2), 40, table=scattered(18, of=18))
    with_cache = step(Engine.of(isa), empty_cache(18, 16, c, torch.float32), [(c, 0, 275)])[0]
    assert torch.equal(step(Engine.of(isa), None, [(c, 0, 275)])[0], with_cache)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_result_is_the_same_bits_in_any_batch_on_any_threads(isa: str, threads: int) -> None:
    lengths = [1 + 37 * i % 600 for i in range(32)]
    cs = [context(n, (4, 2), 16, table=range(40 * i, 40 * i + 38), seed=i) for i, n in enumerate(lengths)]
    cache = empty_cache(40 * 32, 16, cs[0], torch.bfloat16)
    alone = [step(Engine.of(isa), cache, [(c, 0, len(c))])[0] for c in cs]
    engine = Engine.of(isa, threads)
    for size in (1, 2, 7, 32):
        mates = cs[:size]
        decoded = step(engine, cache, [(c, len(c) - 1, len(c)) for c in mates])
        prefilled = step(engine, cache, [(c, len(c) // 2, len(c)) for c in mates])
        for want, one, half in zip(alone, decoded, prefilled, strict=False):
            assert torch.equal(one, want[-1:])
            assert torch.equal(half, want[len(want) // 2 :])


@pytest.mark.parametrize("isa", ISAS)
def test_a_result_is_the_same_bits_wherever_its_blocks_lie(isa: str) -> None:
    c = context(300, (4, 2), 16)
    results = []
    for S, blocks in ((16, scattered(19, of=30)), (4, scattered(75, of=80)), (512, [1])):
        results.append(
            step(Engine.of(isa), empty_cache(80, S, c, torch.bfloat16), [(replace(c, table=tuple(blocks)), 0, 300)])[0]
        )
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES[1:], ids=str)
def test_the_cache_holds_what_the_reference_writes(isa: str, dtype: torch.dtype) -> None:
    c = context(50, (4, 2), 37, table=[3, 1, 0, 2])
    c.k[7] *= 1e-32
    c.v[9, 1] = 0
    ours, theirs = (empty_cache(4, 16, c, dtype) for _ in range(2))
    step(Engine.of(isa), ours, [(c, 0, 50)])
    reference.attention(c.q, c.k, c.v, Batch.build([NewTokens(0, 50, c.table)], theirs, CPU), 1)
    for name in ("keys", "values", "key_scales", "value_scales"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None and other is None) or torch.equal(one.nan_to_num(7), other.nan_to_num(7)), name


@pytest.mark.parametrize("isa", ISAS)
def test_int8_keeps_each_value_within_half_a_step(isa: str) -> None:
    c = context(50, (4, 2), 37, table=[3, 1, 0, 2])
    cache = empty_cache(4, 16, c, torch.int8)
    step(Engine.of(isa), cache, [(c, 0, 50)])
    for x, held in zip((c.k, c.v), rounded(cache, c), strict=True):
        half_a_step = x.abs().amax(-1, keepdim=True) / 254
        assert ((held - x).abs() <= half_a_step * (1 + 1e-5)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CACHES[1:], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_stay_with_their_request_and_with_later_tokens(
    isa: str, dtype: torch.dtype, bad: float
) -> None:
    cs = [context(n, (4, 2), 16, table=range(20 * i, 20 * i + 20), seed=i) for i, n in enumerate((300, 290, 30))]
    clean = step(Engine.of(isa), empty_cache(60, 16, cs[0], dtype), [(c, 0, len(c)) for c in cs])
    cs[1].v[270, 1, 3] = bad
    cs[2].q[4, 2, 1] = math.nan
    got = step(Engine.of(isa), empty_cache(60, 16, cs[0], dtype), [(c, 0, len(c)) for c in cs])
    assert torch.equal(got[0], clean[0])
    assert torch.equal(got[1][:270], clean[1][:270])
    assert not got[1][270:, 2:, 3].isfinite().any()
    assert torch.equal(got[1][:, :2], clean[1][:, :2])
    assert got[2][4, 2].isnan().all()
    assert torch.equal(got[2][5:], clean[2][5:])


@pytest.mark.parametrize("isa", ISAS)
def test_scores_far_apart_and_huge_give_the_formulas_weights(isa: str) -> None:
    c = context(300, (2, 1), 16, table=range(19))
    c.k[:] *= torch.linspace(0.1, 60, 300)[:, None, None]
    got = step(Engine.of(isa), empty_cache(19, 16, c, torch.float32), [(c, 0, 300)])[0]
    # Scores reach 100: rounding one changes its weight by a hundred times as much.
    torch.testing.assert_close(got.double(), exact(c.q, c.k, c.v), atol=100 * TOLERANCE, rtol=0)


@pytest.mark.parametrize("isa", ISAS)
def test_a_recorded_step_reads_its_metadata_anew(isa: str) -> None:
    cs = [
        context(600, (4, 2), 16, table=scattered(38, of=80, seed=1), seed=1),
        context(40, (4, 2), 16, table=[79], seed=2),
    ]
    cs[1] = replace(cs[1], table=tuple(set(range(80)) - set(cs[0].table))[:38])
    cache = empty_cache(80, 16, cs[0], torch.bfloat16)
    step(Engine.of(isa), cache, [(cs[0], 0, 250), (cs[1], 0, 1)])
    q, k, v = (torch.cat([getattr(c, n)[p : p + 1] for c, p in zip(cs, (250, 1), strict=True)]) for n in "qkv")
    tables = torch.zeros(2, 64, dtype=torch.int32)  # wider than needed
    for i, c in enumerate(cs):
        tables[i, : len(c.table)] = torch.tensor(c.table)
    batch = replace(
        Batch.build([NewTokens(250, 1, cs[0].table), NewTokens(1, 1, cs[1].table)], cache, CPU), block_tables=tables
    )
    engine = Engine(_native.Pool(2), _native.kernels(isa), _native.Program())
    out = attention(engine, q, k, v, batch, layer=1)
    assert len(engine.program) == 1
    for i in range(1, 30):
        positions = (250 + i, 1 + i)
        for name, static in (("q", q), ("k", k), ("v", v)):
            static.copy_(torch.stack([getattr(c, name)[p] for c, p in zip(cs, positions, strict=True)]))
        batch.context_lens.add_(1)
        slots = [c.table[p // 16] * 16 + p % 16 for c, p in zip(cs, positions, strict=True)]
        batch.slot_mapping.copy_(torch.tensor(slots))
        engine.program.run(engine.pool)
        want = step(Engine.of(isa), cache, [(c, p, p + 1) for c, p in zip(cs, positions, strict=True)])
        assert torch.equal(out, torch.cat(want))


def refused(words: str, q: Tensor, k: Tensor, v: Tensor, batch: Batch, layer: int = 1) -> None:
    with pytest.raises(TensorError, match=words):
        attention(Engine.of(""), q, k, v, batch, layer=layer)


def test_tensors_that_do_not_fit_are_refused() -> None:
    c = context(20, (4, 2), 16, table=[1, 0])
    cache = empty_cache(3, 16, c, torch.float32)
    batch = Batch.build([NewTokens(0, 20, c.table)], cache, CPU)
    refused("q is torch.float64", c.q.double(), c.k, c.v, batch)
    refused("q has 20 tokens|q is .* and k is", c.q[1:], c.k, c.v, batch)
    refused("q has 19 tokens", c.q[1:], c.k[1:], c.v[1:], batch)
    refused("q is empty", c.q[:0], c.k[:0], c.v[:0], batch)
    refused("not \\(T, heads, D\\)", c.q.flatten(1), c.k, c.v, batch)
    refused("a multiple of the heads", c.q[:, :3], c.k, c.v, batch)
    refused("k is .* and v is", c.q, c.k, c.v[:, :1], batch)
    refused("do not lie end to end", c.q[:, ::2], c.k[:, ::2], c.v[:, ::2], batch)
    refused("do not lie end to end", c.q[..., ::2], c.k[..., ::2], c.v[..., ::2], batch)
    refused(
        "the cache is .* and k's",
        c.q[..., :8].contiguous(),
        c.k[..., :8].contiguous(),
        c.v[..., :8].contiguous(),
        batch,
    )
    refused("no layer 2", c.q, c.k, c.v, batch, layer=2)
    refused("no layer -1", c.q, c.k, c.v, batch, layer=-1)
    for words, broken in {
        "float16": KVCache(cache.keys.half(), cache.values.half()),
        "keys are torch.float32 and": replace(cache, values=cache.values.bfloat16()),
        "keys are \\(": replace(cache, values=cache.values[:1]),
        "int8 needs fp32 scales": KVCache(cache.keys.char(), cache.values.char()),
        "others none": replace(cache, key_scales=cache.keys[..., 0], value_scales=cache.values[..., 0]),
        "not contiguous": KVCache(cache.keys.transpose(1, 2).contiguous().transpose(1, 2), cache.values),
    }.items():
        refused(words, c.q, c.k, c.v, replace(batch, kv_cache=broken))


@pytest.mark.parametrize(
    ("words", "field", "values"),
    [
        ("slot_mapping is outside", "slot_mapping", [48, *range(19)]),
        ("slot_mapping is outside", "slot_mapping", [-1, *range(19)]),
        ("slot_mapping is not one slot", "slot_mapping", [3]),
        ("outside 0 … 2", "block_tables", [[1, 3]]),
        ("outside 0 … 2", "block_tables", [[-1, 0]]),
        ("exceeds block_tables", "block_tables", [[1]]),
        ("exceeds block_tables", "context_lens", [33]),
        ("leaves out new tokens", "context_lens", [19]),
        ("not one entry for each request", "context_lens", [20, 20]),
        ("not one entry for each request", "query_start", [0]),
        ("does not rise", "query_start", [1, 20]),
        ("does not rise", "query_start", [0, 0]),
        ("does not end at T", "query_start", [0, 21]),
    ],
)
def test_metadata_that_leads_out_of_the_cache_is_refused(words: str, field: str, values: list[Any]) -> None:
    c = context(20, (4, 2), 16, table=[1, 0])
    batch = Batch.build([NewTokens(0, 20, c.table)], empty_cache(3, 16, c, torch.float32), CPU)
    wrong = torch.tensor(values, dtype=getattr(batch, field).dtype)
    refused(words, c.q, c.k, c.v, replace(batch, **{field: wrong}))
    refused(f"{field} is", c.q, c.k, c.v, replace(batch, **{field: wrong.double()}))


def test_a_context_that_is_not_in_the_step_needs_a_cache() -> None:
    c = context(20, (4, 2), 16)
    refused("without a cache", c.q[5:], c.k[5:], c.v[5:], Batch.build([NewTokens(5, 15)], None, CPU))
