"""Every op against a float64 formula, and to the bit against `transformers` where rounding places matter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from qwill.batch import Batch, KVCache, NewTokens
from qwill.ops import reference as ops

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 15, 16, 17, 40])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 33), (64, 48), (129, 65)])
def test_linear_is_rounded_once(dtype: torch.dtype, bias: bool, rows: int, outputs: int, inputs: int) -> None:
    x, weight = randn(rows, inputs, dtype=dtype), randn(outputs, inputs, dtype=dtype, seed=1)
    b = randn(outputs, dtype=dtype, seed=2) if bias else None
    got = ops.linear(x, weight, b)
    exact = x.double() @ weight.double().T + (b.double() if b is not None else 0)
    assert got.dtype == dtype
    assert got.shape == (rows, outputs)
    # One rounding of the result, and fp32 sums over `inputs` terms; fp16 products may be summed in halves by torch.
    bound = EPS[dtype] * exact.abs() + 2**-22 * inputs * (x.double().abs() @ weight.double().abs().T)
    if dtype == torch.float16:
        bound = bound + EPS[dtype] * math.sqrt(inputs)
    assert ((got.double() - exact).abs() <= bound + 1e-12).all()


@pytest.mark.parametrize("rows", [1, 40])
def test_linear_leaves_torch_settings_as_they_were(rows: int) -> None:
    before = torch.backends.mkldnn.enabled
    ops.linear(randn(rows, 8, dtype=torch.bfloat16), randn(8, 8, dtype=torch.bfloat16))
    assert torch.backends.mkldnn.enabled == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (4, 64), (3, 2, 128), (0, 16)])
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_rms_norm_equals_transformers_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...], eps: float) -> None:
    theirs = Qwen3RMSNorm(shape[-1], eps).to(dtype)
    theirs.weight.data = randn(shape[-1], dtype=dtype, seed=3)
    x = randn(*shape, dtype=dtype) * 3
    with torch.no_grad():
        assert torch.equal(ops.rms_norm(x, theirs.weight, eps), theirs(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_op_changes_its_inputs(dtype: torch.dtype) -> None:
    x, weight = randn(4, 16, dtype=dtype), randn(16, dtype=dtype, seed=1)
    copies = x.clone(), weight.clone()
    ops.rms_norm(x, weight, 1e-6)
    ops.silu_and_mul(x)
    ops.rope(x.view(4, 1, 16), x, x)
    ops.linear(x, x)
    assert torch.equal(x, copies[0])
    assert torch.equal(weight, copies[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_equals_transformers_to_the_bit(dtype: torch.dtype) -> None:
    q, k = randn(7, 6, 32, dtype=dtype), randn(7, 2, 32, dtype=dtype, seed=1)
    cos, sin = randn(7, 32, dtype=dtype, seed=2), randn(7, 32, dtype=dtype, seed=3)
    want_q, want_k = apply_rotary_pos_emb(q[None], k[None], cos[None], sin[None], unsqueeze_dim=2)
    assert torch.equal(ops.rope(q, cos, sin), want_q[0])
    assert torch.equal(ops.rope(k, cos, sin), want_k[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_equals_the_formula(dtype: torch.dtype) -> None:
    x = randn(5, 34, dtype=dtype) * 4
    gate, up = x.double().chunk(2, dim=-1)
    got = ops.silu_and_mul(x).double()
    torch.testing.assert_close(got, gate * torch.sigmoid(gate) * up, atol=2 * EPS[dtype], rtol=2 * EPS[dtype])


def test_embedding_takes_rows() -> None:
    table = randn(11, 3)
    assert torch.equal(ops.embedding(torch.tensor([10, 0, 10]), table), torch.stack([table[10], table[0], table[10]]))


def exact_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """float64, one head at a time, one query at a time: the last len(q) tokens of a context of len(k)."""
    new, heads, head_dim = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(new):
        seen = len(k) - new + row + 1
        for head in range(heads):
            kv = head * k.shape[1] // heads
            scores = k[:seen, kv].double() @ q[row, head].double() / math.sqrt(head_dim)
            out[row, head] = scores.softmax(0) @ v[:seen, kv].double()
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (7, 1), (15, 5)])
@pytest.mark.parametrize(("context", "new"), [(1, 1), (9, 1), (9, 9), (37, 5), (50, 20)])
def test_attention_equals_the_formula(dtype: torch.dtype, heads: int, kv_heads: int, context: int, new: int) -> None:
    k, v = randn(context, kv_heads, 16, dtype=dtype), randn(context, kv_heads, 16, dtype=dtype, seed=1)
    q = randn(new, heads, 16, dtype=dtype, seed=2)
    cache = KVCache.empty((1, 8, 8, kv_heads, 16), dtype=dtype, device=CPU)
    table = [5, 0, 7, 1, 6, 2, 3]
    old = context - new
    if old:
        first = Batch.build([NewTokens(0, old, table)], cache, CPU)
        ops.attention(torch.zeros(old, heads, 16, dtype=dtype), k[:old], v[:old], first, 0)
    got = ops.attention(q, k[old:], v[old:], Batch.build([NewTokens(old, new, table)], cache, CPU), 0)
    assert got.shape == (new, heads, 16)
    torch.testing.assert_close(got.double(), exact_attention(q, k, v), atol=4 * EPS[dtype], rtol=4 * EPS[dtype])


def test_attention_reads_no_slot_of_another_request() -> None:
    cache = KVCache.empty((1, 4, 8, 1, 16), dtype=torch.float32, device=CPU)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    q, k, v = randn(12, 1, 16), randn(12, 1, 16, seed=1), randn(12, 1, 16, seed=2)
    batch = Batch.build([NewTokens(0, 9, [3, 1]), NewTokens(0, 3, [2])], cache, CPU)
    got = ops.attention(q, k, v, batch, 0)
    want = torch.cat([exact_attention(q[:9], k[:9], v[:9]), exact_attention(q[9:], k[9:], v[9:])])
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-6)
