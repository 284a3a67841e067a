"""Rows in pieces: whole groups, filled up without a change of range; and what is refused."""

from __future__ import annotations

import pytest
import torch

from qwill.errors import WeightsError
from qwill.quantization.checks import check_finite, check_matrix, grouped_pieces


def test_pieces_cover_all_rows_in_order() -> None:
    weight = torch.randn(10, 64)
    pieces = list(grouped_pieces(weight, 3 * 64))
    assert [(start, len(groups)) for start, groups in pieces] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert torch.equal(torch.cat([groups for _, groups in pieces]).flatten(1), weight)


def test_a_row_that_is_longer_than_a_piece_is_taken_whole() -> None:
    assert [start for start, _ in grouped_pieces(torch.zeros(2, 320), 32)] == [0, 1]


def test_the_last_group_is_filled_up_with_the_last_weight() -> None:
    _, groups = next(grouped_pieces(torch.arange(70.0).reshape(2, 35).bfloat16(), 1000))
    assert groups.dtype == torch.float32
    assert groups.shape == (2, 2, 32)
    assert groups[0, 1].tolist() == [32, 33, 34] + 29 * [34]


def test_no_columns_are_no_pieces() -> None:
    assert list(grouped_pieces(torch.zeros(3, 0), 64)) == []


def test_matrices_of_floats_pass_and_others_do_not() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check_matrix(torch.zeros(1, 1, dtype=dtype))
    for weight in (torch.zeros(1), torch.zeros(1, 1).double(), torch.zeros(1, 1).int()):
        with pytest.raises(WeightsError, match="is not an fp32, bf16 or fp16 matrix"):
            check_matrix(weight)


def test_nan_and_infinity_are_told_apart() -> None:
    check_finite(torch.zeros(3))
    with pytest.raises(WeightsError, match="weights are NaN"):
        check_finite(torch.tensor([1.0, float("nan"), float("inf")]))
    with pytest.raises(WeightsError, match="weights are infinite"):
        check_finite(torch.tensor([1.0, float("-inf")]))
