"""Divergence, agreement and likelihood against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from qwill.errors import ModelError
from qwill.eval.scores import score


@pytest.mark.parametrize("count", [1, 16, 35])
@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_every_number_is_torch_s(count: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(count)
    baseline = 10 * torch.randn(count, 97, generator=generator)
    logits = baseline + scale * torch.randn(count, 97, generator=generator)
    targets = torch.randint(97, (count,), generator=generator)
    got = score(baseline, logits, targets)
    log_p, log_q = (F.log_softmax(values.double(), -1) for values in (baseline, logits))
    expected = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(got.divergence, expected, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(got.surprise, F.cross_entropy(logits.double(), targets, reduction="none"))
    torch.testing.assert_close(got.baseline_surprise, F.cross_entropy(baseline.double(), targets, reduction="none"))
    assert got.agrees.tolist() == [p == q for p, q in zip(baseline.argmax(-1), logits.argmax(-1), strict=True)]


def test_it_is_the_divergence_of_the_model_from_the_baseline_and_not_the_reverse() -> None:
    baseline, logits = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    p, q = torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, torch.e**5]).double() / (1 + torch.e**5)
    assert score(baseline, logits, torch.tensor([0])).divergence.item() == pytest.approx((p * (p / q).log()).sum())


def test_equal_logits_diverge_by_nothing_and_a_shift_of_all_is_no_difference() -> None:
    logits = 20 * torch.randn(5, 1000)
    assert score(logits, logits, torch.zeros(5, dtype=torch.int64)).divergence.tolist() == [0.0] * 5
    shifted = score(logits.double(), logits.double() + 3, torch.zeros(5, dtype=torch.int64))
    assert (shifted.divergence >= 0).all()
    assert shifted.divergence.max() < 1e-12


@pytest.mark.parametrize(("bad", "who"), [(0, "the baseline"), (1, "the model")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_an_error_that_says_whose(bad: int, who: str, value: float) -> None:
    both = [torch.zeros(2, 3), torch.zeros(2, 3)]
    both[bad][1, 2] = value
    with pytest.raises(ModelError, match=who) as caught:
        score(*both, torch.tensor([0, 0]))
    assert caught.value.hint
