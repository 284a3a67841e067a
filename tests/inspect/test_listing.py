from __future__ import annotations

import json
from typing import Any

from rich.cells import cell_len

from qwill.inspect.listing import tensor_lines
from qwill.inspect.structure import structure


def test_a_line_has_all_of_a_tensor_and_leads_to_its_bytes(models: Any) -> None:
    folder = models.write()
    lines = tensor_lines(structure(folder).tensors, None)
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert lines[0].split() == ["name", "dtype", "shape", "bytes", "offset"]
    assert len(lines) == 1 + len(header)
    for line, (name, entry) in zip(lines[1:], header.items(), strict=True):
        shape = "(" + ", ".join(map(str, entry["shape"])) + ")"
        start, end = entry["data_offsets"]
        assert line.split(maxsplit=2)[:2] == [name, entry["dtype"]]
        assert line.split(maxsplit=2)[2].startswith(shape)
        assert line.split()[-2:] == [str(end - start), str(8 + length + start)]


def test_columns_are_aligned_by_width_and_not_by_characters(models: Any) -> None:
    tensors = {"视觉.权重": ("F32", (2,)), "a": ("BF16", (3, 4))}
    lines = tensor_lines(structure(models.write({}, tensors=tensors)).tensors, None)
    assert len({cell_len(line) for line in lines}) == 1
    assert {
        cell_len(line[: line.index(dtype)]) for line, dtype in zip(lines, ["dtype", "F32", "BF16"], strict=True)
    } == {cell_len("视觉.权重  ")}


def test_the_file_is_told_where_there_are_several(models: Any) -> None:
    lines = tensor_lines(structure(models.write(shards=2)).tensors, None)
    assert {line.split()[-1] for line in lines[1:]} == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}


def test_in_a_narrow_terminal_the_name_has_a_line_of_its_own(models: Any) -> None:
    tensors = structure(models.write()).tensors
    lines = tensor_lines(tensors, 60)
    assert len(lines) == 2 * (len(tensors) + 1)
    assert max(map(cell_len, lines)) <= 60
    assert lines[2] == tensors[0].name


def test_control_characters_are_not_shown(models: Any) -> None:
    lines = tensor_lines(structure(models.write({}, tensors={"a\x1b[2J\n": ("F32", (1,))})).tensors, None)
    assert lines[1].startswith("a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}  F32")


def test_a_model_without_tensors_has_a_header_only(models: Any) -> None:
    assert len(tensor_lines(structure(models.write({}, tensors={})).tensors, 80)) == 1
