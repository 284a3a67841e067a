"""Rows of a checkpoint's tensors as numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qwill.checkpoint_values import half_split_order, row_bytes, values_of_rows
from qwill.formats import open_checkpoint


def test_any_rows_are_those_of_the_safetensors_library(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("qwen3")
    want = load_file(folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        for name in ("model.embed_tokens.weight", "model.norm.weight"):
            info = checkpoint.tensors[name]
            assert row_bytes(info) * info.shape[0] == info.nbytes
            for start, stop in ((0, info.shape[0]), (3, 17), (5, 5)):
                assert torch.equal(values_of_rows(checkpoint, info, start, stop), want[name][start:stop])


def test_a_type_that_is_not_implemented_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from qwill.errors import WeightsError

    save_file({"x": torch.zeros(4, 4, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(WeightsError, match="I64 is not implemented"):
        values_of_rows(checkpoint, checkpoint.tensors["x"], 0, 4)


def test_rotary_rows_go_back_from_pairs_to_halves() -> None:
    """llama.cpp's converter reshapes each head to (2, D/2) and swaps the two; this is the way back."""
    rows, head_dim = 24, 8
    original = torch.arange(rows)
    stored = original.view(-1, 2, head_dim // 2).transpose(1, 2).flatten()
    assert torch.equal(stored[half_split_order(rows, head_dim)], original)
