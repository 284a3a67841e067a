"""The rotary picture against the closed form in float64, and against the module of `transformers`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwill.config import load_config
from qwill.errors import SettingError
from qwill.views.rotary import rotary

KINDS = ["qwen3", "qwen3-odd-heads", "llama", "qwen3-yarn", "llama3-rope", "llama-linear-rope"]


@pytest.mark.parametrize("kind", KINDS)
def test_speeds_angles_and_amplitude_are_those_of_transformers(
    kind: str, tiny_checkpoint: Callable[..., Path], hf_model: Callable[..., Any]
) -> None:
    folder = tiny_checkpoint(kind)
    official = hf_model(folder).model.rotary_emb
    view = rotary(load_config(folder), positions=300)
    data = view.data()
    np.testing.assert_allclose(data["inv_freq"], official.inv_freq.numpy(), rtol=1e-6)
    cos, _ = official(torch.zeros(1, 1), torch.arange(300)[None])  # (1, 300, D)
    half = data["head_dim"] // 2
    ours = data["amplitude"] * view.angles().cos()
    torch.testing.assert_close(ours, cos[0, :, :half].T.double(), atol=3e-5, rtol=0)


def test_without_scaling_all_follows_from_theta_and_the_size_of_a_head(tiny_checkpoint: Callable[..., Path]) -> None:
    config = replace(load_config(tiny_checkpoint("qwen3")), head_dim=128, rope_theta=1e6)
    data = rotary(config, positions=1000).data()
    speeds = 1e6 ** (-np.arange(64) / 64)
    np.testing.assert_allclose(data["inv_freq"], speeds, rtol=1e-6)
    np.testing.assert_allclose(data["wavelengths"], 2 * math.pi / speeds, rtol=1e-6)
    likeness = np.cos(np.arange(1000)[:, None] * speeds).mean(1)
    np.testing.assert_allclose(data["similarity"], likeness, atol=2e-6)
    assert data["similarity"][0] == 1.0
    assert (data["scaling"], data["amplitude"], data["positions"]) == (None, 1.0, 1000)


def test_the_likeness_is_what_the_rotation_leaves_of_two_equal_vectors(tiny_checkpoint: Callable[..., Path]) -> None:
    """By rotating a vector whose pairs are all of one length, and multiplying."""
    view = rotary(load_config(tiny_checkpoint("qwen3-yarn")), positions=50)
    pairs = len(view.inv_freq)
    vector = np.exp(2j * math.pi * np.random.default_rng(0).random(pairs)) / math.sqrt(pairs)
    turned = vector * np.exp(1j * view.inv_freq.double().numpy() * np.arange(50)[:, None])
    np.testing.assert_allclose(view.similarity().numpy(), (turned @ vector.conj()).real, atol=1e-12)


def test_a_stretched_model_says_by_what(tiny_checkpoint: Callable[..., Path]) -> None:
    data = rotary(load_config(tiny_checkpoint("qwen3-yarn"))).data()
    assert data["scaling"] == {"kind": "yarn", "factor": 4.0, "trained": 512}
    assert data["amplitude"] == pytest.approx(0.1 * math.log(4.0) + 1.0)


@pytest.mark.parametrize("positions", [1, 2, 3000])
def test_it_can_be_drawn_for_any_length(positions: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    view = rotary(load_config(tiny_checkpoint("qwen3")), positions=positions)
    view.save(tmp_path / "rotary.png")
    view.save(tmp_path / "rotary.json")
    assert json.loads((tmp_path / "rotary.json").read_text()) == view.data()
    assert "Rotary positions" in view._repr_html_()


@pytest.mark.parametrize("positions", [0, -1, (1 << 17) + 1])
def test_a_number_of_positions_that_makes_no_sense_is_refused(
    positions: int, tiny_checkpoint: Callable[..., Path]
) -> None:
    with pytest.raises(SettingError, match="positions"):
        rotary(load_config(tiny_checkpoint("qwen3")), positions=positions)
