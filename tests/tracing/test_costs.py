"""What an op has to move and to compute, against counts by hand."""

from __future__ import annotations

import torch

from qwill.batch import Batch, KVCache, NewTokens
from qwill.quantization import PackedWeight, quantize_weight
from qwill.tracing.costs import cost

CPU = torch.device("cpu")


def test_a_linear_layer_reads_weight_bias_and_residual() -> None:
    x, weight, bias, residual = torch.ones(3, 8), torch.ones(5, 8), torch.ones(5), torch.ones(3, 5)
    y = torch.ones(3, 5)
    assert cost("linear", (x, weight, None, None), y) == (4 * (3 * 8 + 5 * 8 + 3 * 5), 2 * 3 * 8 * 5)
    assert cost("linear", (x, weight, bias, residual), y)[0] == 4 * (3 * 8 + 5 * 8 + 5 + 2 * 3 * 5)


def test_a_packed_weight_counts_as_what_it_holds() -> None:
    weight = PackedWeight(64, (quantize_weight(torch.randn(64, 64), "int8", sensitive=False),))
    x, y = torch.ones(2, 64), torch.ones(2, 64)
    assert cost("linear", (x, weight, None, None), y)[0] == weight.nbytes + x.nbytes + y.nbytes


def test_without_rows_no_weight_is_read() -> None:
    weight, none = torch.ones(5, 8), torch.ones(0, 8)
    assert cost("linear", (none, weight, None, None), torch.ones(0, 5)) == (0, 0)
    assert cost("rms_norm", (none, torch.ones(8), 1e-6), none) == (0, 0)


def test_an_embedding_reads_only_its_rows() -> None:
    ids, table = torch.zeros(3, dtype=torch.int64), torch.ones(100, 8)
    assert cost("embedding", (ids, table), table[ids]) == (3 * 8 + 2 * 4 * 3 * 8, 0)


def test_attention_reads_each_context_once_and_counts_the_pairs_it_may_look_at() -> None:
    Hq, Hkv, D = 4, 2, 8
    cache = KVCache.empty((1, 8, 4, Hkv, D), dtype=torch.bfloat16, device=CPU)
    batch = Batch.build([NewTokens(5, 3, (0, 1)), NewTokens(0, 2, (2,))], cache, CPU)
    q, k = torch.ones(5, Hq, D), torch.ones(5, Hkv, D)
    nbytes, operations = cost("attention", (q, k, k, batch, 0), q)
    pairs = (6 + 7 + 8) + (1 + 2)
    assert operations == pairs * Hq * (2 * D + 2 * D)
    rows = 5 + 8 + 2  # written, and read by each request
    assert nbytes == 2 * q.nbytes + 2 * k.nbytes + rows * 2 * Hkv * D * 2


def test_the_scales_of_an_int8_cache_count() -> None:
    cache = KVCache.empty((1, 8, 4, 2, 8), dtype=torch.int8, device=CPU)
    batch = Batch.build([NewTokens(0, 2, (2,))], cache, CPU)
    q, k = torch.ones(2, 4, 8), torch.ones(2, 2, 8)
    nbytes, _ = cost("attention", (q, k, k, batch, 0), q)
    assert nbytes == 2 * q.nbytes + 2 * k.nbytes + (2 + 2) * 2 * 2 * (8 + 4)
