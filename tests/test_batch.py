"""The layout of a packed step."""

from __future__ import annotations

import pytest
import torch

from qwill.batch import Batch, KVCache, NewTokens
from qwill.errors import TensorError

CPU = torch.device("cpu")


def cache(blocks: int = 8, size: int = 4) -> KVCache:
    return KVCache.empty((2, blocks, size, 1, 2), dtype=torch.float32, device=CPU)


def test_requests_stand_end_to_end() -> None:
    batch = Batch.build([NewTokens(5, 3, [6, 1]), NewTokens(0, 2, [3], num_logits=0)], cache(), CPU)
    assert batch.positions.tolist() == [5, 6, 7, 0, 1]
    assert batch.query_start.tolist() == [0, 3, 5]
    assert batch.context_lens.tolist() == [8, 2]
    assert batch.block_tables.tolist() == [[6, 1], [3, 0]]
    assert batch.slot_mapping.tolist() == [1 * 4 + 1, 1 * 4 + 2, 1 * 4 + 3, 12, 13]
    assert batch.logits_rows.tolist() == [2]


def test_logits_are_asked_for_the_last_rows() -> None:
    batch = Batch.build([NewTokens(0, 3, num_logits=3), NewTokens(0, 2, num_logits=1)], None, CPU)
    assert batch.logits_rows.tolist() == [0, 1, 2, 4]


def test_consecutive_blocks_are_read_in_place_and_scattered_ones_by_index() -> None:
    batch = Batch.build([NewTokens(5, 1, [2, 3]), NewTokens(5, 1, [3, 2])], cache(), CPU)
    assert batch.spans[0].slots == slice(8, 14)
    slots = batch.spans[1].slots
    assert isinstance(slots, torch.Tensor)
    assert slots.tolist() == [12, 13, 14, 15, 8, 9]


def test_without_a_cache_the_context_is_the_step_itself() -> None:
    batch = Batch.build([NewTokens(0, 3), NewTokens(0, 2)], None, CPU)
    assert [span.slots for span in batch.spans] == [slice(0, 3), slice(3, 5)]
    assert batch.slot_mapping.tolist() == []


def test_a_layer_of_the_cache_is_seen_by_slot_and_shares_its_memory() -> None:
    whole = cache()
    keys, values = whole.layer(1)
    assert keys.shape == values.shape == (32, 1, 2)
    keys[9] = 7.0
    assert whole.keys[1, 2, 1].tolist() == [[7.0, 7.0]]


def test_tokens_past_a_request_s_blocks_are_refused() -> None:
    """Beside a request of many blocks, whose table is wider: they must not land in block 0."""
    with pytest.raises(TensorError, match="request 1"):
        Batch.build([NewTokens(0, 9, [1, 2, 3]), NewTokens(4, 1, [5])], cache(), CPU)
