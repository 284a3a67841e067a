"""Numbers of attention weights, on small tensors and against numpy written out."""

from __future__ import annotations

import base64
import math
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from qwill.views.attention_numbers import KINDS, packed, small_maps, strongest, summaries


def random_weights(heads: int, queries: int, keys: int, seed: int = 0) -> Tensor:
    """Rows that sum to 1, of the last `queries` of `keys` positions."""
    scores = torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(seed)) * 3
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
    return scores.masked_fill(later, -math.inf).softmax(-1)


@pytest.mark.parametrize("first", [0, 5])
def test_summaries_are_the_averages_that_they_are_said_to_be(first: int) -> None:
    weights = random_weights(3, 20 - first, 20)
    for head, summary in enumerate(summaries(weights)):
        w = weights[head].double().numpy()
        entropies, firsts, previous, distances = [], [], [], []
        for query in range(max(first, 1), 20):
            row = w[query - first][: query + 1]
            entropies.append(-sum(p * math.log2(p) for p in row if p > 0))
            firsts.append(row[0])
            previous.append(row[query - 1])
            distances.append(sum(p * (query - key) for key, p in enumerate(row)))
        expected = [np.mean(each) for each in (entropies, firsts, previous, distances)]
        found = [summary.entropy, summary.first_token, summary.previous_token, summary.distance]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_head_is_named_only_when_half_of_its_weight_is_there() -> None:
    eye = torch.eye(12)
    before = torch.cat((eye[:1], eye[:-1]))  # each looks at the one before, the first at itself
    sink = torch.zeros(12, 12)
    sink[:, 0] = 1.0
    even = torch.ones(12, 12).tril()
    even /= even.sum(1, keepdim=True)
    heads = torch.stack([before, sink, even, 0.52 * before + 0.48 * even, 0.2 * sink + 0.8 * even])
    found = [summary.kind for summary in summaries(heads)]
    assert found == ["previous-token head", "sink head", None, "previous-token head", None]
    assert {kind for kind in found if kind} == set(KINDS)
    few = [summary.kind for summary in summaries(heads[:, :8, :8])]  # seven queries tell too little
    assert few == [None] * 5


def test_one_token_that_sees_itself_has_a_summary() -> None:
    (summary,) = summaries(torch.ones(1, 1, 1))
    assert (summary.entropy, summary.first_token, summary.previous_token, summary.distance) == (0.0, 1.0, 0.0, 0.0)
    assert summary.kind is None


@pytest.mark.parametrize(("queries", "keys", "size"), [(9, 9, 9), (9, 9, 4), (6, 10, 10), (6, 10, 3), (65, 70, 64)])
def test_a_map_has_in_each_square_the_root_of_the_largest_weight_there(queries: int, keys: int, size: int) -> None:
    weights = random_weights(2, queries, keys)
    maps = small_maps(weights, size).numpy()
    whole = np.zeros((2, keys, keys))
    whole[:, keys - queries :] = weights.numpy()
    ends = [(math.floor(i * keys / size), math.ceil((i + 1) * keys / size)) for i in range(size)]
    for i, (top, bottom) in enumerate(ends):
        for j, (left, right) in enumerate(ends):
            largest = whole[:, top:bottom, left:right].max((1, 2))
            assert (maps[:, i, j] == np.round(255 * np.sqrt(largest.astype(np.float32)))).all()


def test_a_map_is_as_exact_as_it_says() -> None:
    weights = random_weights(4, 40, 40)
    back = (small_maps(weights, 40).double() / 255) ** 2
    assert ((back - weights).abs() <= 0.004 * weights.sqrt() + 4e-6).all()


def test_the_strongest_keys_are_the_strongest_in_order() -> None:
    weights = random_weights(3, 15, 20)
    places, found = strongest(weights, 8)
    for head in range(3):
        for row in range(15):
            seen = weights[head, row, : row + 6].numpy()
            order = np.argsort(-seen, kind="stable")[:8]
            assert places[head, row, : len(order)].tolist() == order.tolist()
            assert found[head, row, : len(order)].tolist() == seen[order].tolist()
            assert places[head, row, len(order) :].tolist() == [0] * (8 - len(order))
            assert not found[head, row, len(order) :].any()


def test_keys_with_no_weight_at_all_are_still_keys_that_may_be_seen() -> None:
    weights = torch.zeros(1, 4, 4)
    weights[0, :, 0] = 1.0
    places, found = strongest(weights, 3)
    assert sorted(places[0, 3].tolist()) != [0, 0, 0]
    assert places[0, 1].tolist() == [0, 1, 0]
    assert found[0, 1].tolist() == [1.0, 0.0, 0.0]


def test_packed_numbers_can_be_unpacked() -> None:
    one, other = torch.tensor([[1, 300]], dtype=torch.uint16), torch.tensor([7, 8], dtype=torch.uint8)
    data = zlib.decompress(base64.b64decode(packed(one, other)))
    assert data == bytes([1, 0, 44, 1, 7, 8])
