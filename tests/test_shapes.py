"""Every shape comment in the models and in the reference ops is executed, with sizes that cannot be confused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from qwill.batch import Batch, KVCache, NewTokens
from qwill.config import ModelConfig
from qwill.models.qwen3 import CausalLM
from qwill.ops import reference
from qwill.quantization import PackedWeight, pack_dense
from scripts.shape_comments import ShapeChecker

QWILL = Path(reference.__file__).parent.parent
CPU = torch.device("cpu")

LETTERS = {"T", "B", "C", "Hq", "Hkv", "D", "F", "V", "E", "S", "H", "K", "N", "R"}
"""T new tokens, B requests, C hidden_size, Hq and Hkv heads, D head_dim, F intermediate_size, V vocab_size, E experts,
S block_size; locally H heads of either kind, K inputs, N outputs or context tokens, R rows whose logits are wanted."""

SIZES = {"T": 11, "R": 7, "C": 20, "Hq": 6, "Hkv": 3, "D": 8, "F": 14, "V": 50}
CONFIG = ModelConfig(
    architecture="qwen3",
    vocab_size=SIZES["V"],
    hidden_size=SIZES["C"],
    intermediate_size=SIZES["F"],
    num_layers=2,
    num_heads=SIZES["Hq"],
    num_kv_heads=SIZES["Hkv"],
    head_dim=SIZES["D"],
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=True,
    dtype="float32",
    bos_token_id=None,
    eos_token_ids=(),
)


def filled(*shape: int) -> Tensor:
    return torch.zeros(shape)


def test_the_shape_comments_of_the_models_are_true() -> None:
    checker = ShapeChecker(sorted((QWILL / "models").glob("*.py")), LETTERS)
    model = CausalLM(CONFIG)
    for parameter in model.parameters():
        parameter.zero_()
    # Two requests, 6 + 5 = T tokens; all rows of the one and the last of the other: 6 + 1 = R.
    batch = Batch.build([NewTokens(0, 6, num_logits=6), NewTokens(0, 5)], None, CPU)
    with checker.sizes(**SIZES):
        logits = model(torch.arange(SIZES["T"]), batch)
    assert logits.shape == (SIZES["R"], SIZES["V"])
    assert checker.problems() == []


@pytest.fixture
def checker() -> ShapeChecker:
    return ShapeChecker([QWILL / "ops" / "reference.py"], LETTERS)


def test_the_shape_comments_of_the_reference_ops_are_true(checker: ShapeChecker) -> None:
    T, C, H, D, F = 11, 20, 6, 8, 14
    with checker.sizes(T=T, C=C, H=H, D=D, F=F, K=C, N=13):
        reference.embedding(torch.zeros(T, dtype=torch.int64), filled(50, C))
        reference.embedding(torch.zeros(T, dtype=torch.int64), PackedWeight(C, (pack_dense(filled(50, C)),)))
        reference.rotary_angles(torch.arange(T), filled(D // 2), 1.0)
        reference.linear(filled(T, C), filled(13, C), filled(13))
        reference.rms_norm(filled(T, C), filled(C), 1e-6)
        reference.rope(filled(T, H, D), filled(T, D), filled(T, D))
        reference.silu_and_mul(filled(T, 2 * F))
    run_attention(checker)
    assert checker.problems() == []


def run_attention(checker: ShapeChecker) -> None:
    """One request without a cache, then one whose context of 15 tokens fills a cache of 3 blocks of 5."""
    T, Hq, Hkv, D, S, N = 7, 6, 3, 8, 5, 15
    q, k, v = filled(T, Hq, D), filled(T, Hkv, D), filled(T, Hkv, D)
    cache = KVCache.empty((2, N // S, S, Hkv, D), dtype=torch.float32, device=CPU)
    cached = Batch.build([NewTokens(N - T, T, (0, 1, 2))], cache, CPU)
    with checker.sizes(T=T, Hq=Hq, Hkv=Hkv, D=D, S=S, N=N):
        reference.attention(q, k, v, cached, 1)
    small = KVCache.empty((2, N // S, S, Hkv, D), dtype=torch.int8, device=CPU)
    with checker.sizes(T=T, Hq=Hq, Hkv=Hkv, D=D, S=S, N=N):
        reference.attention(q, k, v, Batch.build([NewTokens(N - T, T, (0, 1, 2))], small, CPU), 1)
    uncached = Batch.build([NewTokens(0, T)], None, CPU)
    with checker.sizes(may_equal=["N"], T=T, Hq=Hq, Hkv=Hkv, D=D, N=T):
        reference.attention(q, k, v, uncached, 1)
