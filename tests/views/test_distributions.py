"""What a row of logits says, against float64 written out."""

from __future__ import annotations

import numpy as np
import pytest

from qwill.views.distributions import chunks, distribution, significant


def test_it_is_the_softmax_in_float64() -> None:
    logits = np.random.default_rng(0).normal(0, 4, 5000).astype(np.float32)
    exact = np.exp(logits.astype(np.float64) - logits.max())
    exact /= exact.sum()
    order = np.argsort(-exact, kind="stable")
    for chosen in (int(order[0]), int(order[17]), int(order[-1])):
        told = distribution(logits, chosen, 7)
        assert told.logprob == pytest.approx(np.log(exact[chosen]), abs=1e-6)
        assert told.rank == 1 + int(np.flatnonzero(order == chosen)[0])
        assert told.entropy == pytest.approx(-(exact * np.log2(exact)).sum(), abs=1e-6)
        assert [token_id for token_id, _ in told.top] == order[:7].tolist()
        assert [p for _, p in told.top] == pytest.approx(exact[order[:7]], rel=1e-6)


def test_among_equals_the_lower_id_is_first() -> None:
    told = distribution(np.array([1, 3, 3, 0, 3], dtype=np.float32), 4, 2)
    assert told.rank == 3
    assert [token_id for token_id, _ in told.top] == [1, 2]


def test_entropy_of_the_even_and_of_the_certain() -> None:
    assert distribution(np.zeros(1024, dtype=np.float32), 0, 0).entropy == pytest.approx(10.0)
    assert distribution(np.array([0, 500, 0], dtype=np.float32), 1, 0).entropy == 0.0


def test_the_row_stays_as_it_is_and_more_than_all_is_all() -> None:
    logits = np.array([0.5, -1.0], dtype=np.float32)
    assert len(distribution(logits, 0, 5).top) == 2
    assert logits.tolist() == [0.5, -1.0]


def test_pieces_cover_all_rows_within_memory() -> None:
    pieces = list(chunks(512, 151936))
    assert [i for rows in pieces for i in range(512)[rows]] == list(range(512))
    assert max(rows.stop - rows.start for rows in pieces) * 151936 * 4 <= 16 << 20
    assert list(chunks(2, 1 << 40)) == [slice(0, 1), slice(1, 2)]


def test_numbers_for_data_are_short() -> None:
    assert significant(1 / 3) == 0.333333
    assert significant(1.23456789e-12) == 1.23457e-12
