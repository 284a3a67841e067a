"""What every way to quantize asks of a matrix, and how its rows are taken in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from qwill.errors import WeightsError
from qwill.formats.weight_formats import GROUP, groups_of

__all__ = ["check_finite", "check_matrix", "grouped_pieces"]


def check_matrix(weight: Tensor) -> None:
    """Refuse what is not a matrix of floats.

    Raises:
        WeightsError: says what it is.
    """
    if weight.ndim != 2 or not weight.is_floating_point() or weight.dtype == torch.float64:
        raise WeightsError(
            f"a {weight.dtype} tensor of shape {tuple(weight.shape)} is not an fp32, bf16 or fp16 matrix"
        )


def grouped_pieces(weight: Tensor, piece: int) -> Iterator[tuple[int, Tensor]]:
    """Some rows at a time, about `piece` weights: the first row, and their groups, fp32 (rows, G, 32).

    An incomplete last group is filled up with its row's last weight, which leaves the group's range as it is.
    """
    rows, columns = weight.shape
    if not columns:
        return
    step = max(1, piece // columns)
    for start in range(0, rows, step):
        part = weight[start : start + step].float()
        if missing := -columns % GROUP:
            part = F.pad(part, (0, missing), mode="replicate")
        yield start, part.reshape(len(part), groups_of(columns), GROUP)


def check_finite(largest: Tensor) -> None:
    """Refuse weights or scales that are infinite or NaN; `largest` holds the largest of each group.

    Raises:
        WeightsError: says which of the two.
    """
    if not bool(torch.isfinite(largest).all()):
        kind = "NaN" if bool(torch.isnan(largest).any()) else "infinite, or too large for scales in fp16"
        raise WeightsError(f"weights are {kind}", hint="`qwill verify` names the tensor and the place")
