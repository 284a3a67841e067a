"""What is derived from the scores, against numpy; and what the weights of a model take."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from qwill.eval.quality import Divergence, Quality, Size, as_record, model_size, summarize
from qwill.eval.scores import Scores


def some_scores(count: int, seed: int) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    columns = (torch.rand(count, generator=generator, dtype=torch.float64) for _ in range(4))
    divergence, agrees, surprise, baseline_surprise = columns
    return Scores(divergence, agrees > 0.3, surprise, baseline_surprise)


def test_the_summary_is_of_all_positions_alike_whatever_steps_they_came_in() -> None:
    scores = [some_scores(count, seed) for seed, count in enumerate((64, 64, 3))]
    found = summarize(scores)
    divergence = np.concatenate([one.divergence.numpy() for one in scores])
    assert found["positions"] == 131
    assert found["divergence"] == Divergence(
        mean=pytest.approx(divergence.mean()),
        standard_error=pytest.approx(divergence.std(ddof=1) / math.sqrt(131)),
        median=pytest.approx(np.median(divergence)),
        percentile_99=pytest.approx(np.percentile(divergence, 99)),
        maximum=divergence.max(),
    )
    assert found["top1_agreement"] == pytest.approx(100 * np.mean(np.concatenate([one.agrees for one in scores])))
    surprise = np.concatenate([one.surprise for one in scores])
    assert found["perplexity"] == pytest.approx(np.exp(surprise.mean()))
    assert found["baseline_perplexity"] != found["perplexity"]


def test_a_single_position_has_no_standard_error() -> None:
    assert summarize([some_scores(1, 0)])["divergence"].standard_error is None


class Tied(nn.Module):
    """An embedding whose matrix is also the head's, a norm, and a layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4, dtype=torch.bfloat16)
        self.layer = nn.Linear(4, 3, dtype=torch.bfloat16)
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight


def test_a_model_s_size_counts_a_tied_matrix_once_and_norms_and_biases_too() -> None:
    size = model_size(Tied())
    assert size == Size(40 + 12 + 3 + 4, 2 * (40 + 12 + 3) + 4 * 4)
    assert size.bits_per_weight == pytest.approx(8 * 126 / 59)


def test_the_record_is_json_with_what_was_derived() -> None:
    fields = summarize([some_scores(2, 0)])
    quality = Quality("m", "b", {}, Size(8, 4), Size(8, 32), "t", "0", 3, 512, interrupted=False, **fields)
    record = json.loads(json.dumps(as_record(quality), allow_nan=False))
    assert record["size"] == {"parameters": 8, "nbytes": 4, "bits_per_weight": 4.0}
    assert record["baseline_size"]["bits_per_weight"] == 32
    assert record["divergence"]["mean"] == quality.divergence.mean
