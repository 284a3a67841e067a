"""Packed weights written and used from the file: the same bytes, in place, and readable by the safetensors library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qwill.errors import FormatError, WeightsError
from qwill.formats import open_checkpoint
from qwill.quantization import FORMATS, PackedPart, PackedWeight, quantize_weight
from qwill.quantized_checkpoint import StoredTensor, stored_part, write_weights

SHAPES = {"a": (33, 100), "b": (1, 1), "c": (64, 256)}


def write(path: Path) -> dict[str, PackedPart]:
    """Three matrices in different formats and a norm."""
    kinds = {"a": ("int4", False), "b": ("int8", False), "c": ("int4", True)}
    parts = {n: quantize_weight(torch.randn(SHAPES[n]), q, sensitive=s) for n, (q, s) in kinds.items()}
    plan = [StoredTensor(name, part.format.name, SHAPES[name]) for name, part in parts.items()]
    norm = np.arange(5, dtype=np.float32)
    write_weights(
        path,
        [*plan, StoredTensor("norm", "F32", (5,))],
        [*(part.data.numpy().data for part in parts.values()), norm.view(np.uint8).data],
    )
    return parts


def test_what_was_written_is_read_in_place(tmp_path: Path) -> None:
    parts = write(tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        for name, part in parts.items():
            stored = stored_part(checkpoint.tensors[name])
            assert (stored.format, stored.rows) == (part.format, part.rows)
            assert torch.equal(stored.data, part.data)
            assert stored.data.data_ptr() % 64 == 0
            assert stored.data.is_contiguous()
            weights = [PackedWeight(SHAPES[name][1], (each,)).dequantize() for each in (stored, part)]
            assert torch.equal(*weights)
        assert checkpoint.raw("norm").view(np.float32).tolist() == [0, 1, 2, 3, 4]


def test_a_part_outlives_the_checkpoint(tmp_path: Path) -> None:
    parts = write(tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        stored = stored_part(checkpoint.tensors["a"])
    assert torch.equal(stored.data, parts["a"].data)


def test_writing_to_a_part_never_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    before = path.read_bytes()
    with open_checkpoint(tmp_path) as checkpoint:
        stored_part(checkpoint.tensors["a"]).data.fill_(7)
    assert path.read_bytes() == before


def test_the_file_is_plain_safetensors_for_others(tmp_path: Path) -> None:
    parts = write(tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    for name, part in parts.items():
        data = tensors[name]
        assert data.dtype == torch.uint8
        assert torch.equal(data[: len(part.data)], part.data)
        assert not data[len(part.data) :].any()
        assert len(data) % 64 == 0
    assert tensors["norm"].tolist() == [0, 1, 2, 3, 4]


def test_a_tensor_of_another_size_than_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="n has 4 bytes, not 8"):
        write_weights(tmp_path / "x", [StoredTensor("n", "F32", (2,))], [bytes(4)])


def test_packed_matrices_must_come_first(tmp_path: Path) -> None:
    plan = [StoredTensor("n", "F32", (2,)), StoredTensor("w", "int8", (16, 32))]
    with pytest.raises(WeightsError, match="packed matrices come before"):
        write_weights(tmp_path / "x", plan, [])


def test_a_tensor_that_is_not_packed_is_no_part(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(WeightsError, match="F32 is not packed"):
        stored_part(checkpoint.tensors["norm"])


def test_a_file_that_shrank_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    with open_checkpoint(tmp_path) as checkpoint:
        path.write_bytes(b"short")
        with pytest.raises(FormatError, match="cannot be mapped"):
            stored_part(checkpoint.tensors["a"])


def test_sizes_of_a_plan() -> None:
    matrix = StoredTensor("w", "int8", (20, 40))
    assert matrix.nbytes == FORMATS["int8"].nbytes(20, 40) == 2176
    assert (matrix.stored_bytes, matrix.is_packed) == (2176, True)
    assert StoredTensor("w", "int8", (1, 1)).stored_bytes == 576
    assert StoredTensor("n", "BF16", (3,)).stored_bytes == 6
