from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from qwill.inspect.structure import Structure, structure
from qwill.inspect.tree import tree_table


def tree(shown: Callable[..., str], found: Structure, width: int = 80) -> list[str]:
    """The table's lines without the blanks at their ends."""
    return [line.rstrip() for line in shown(lambda c: c.print(tree_table(found.root, width)), width=width).splitlines()]


def test_equal_layers_are_folded_and_every_name_is_there(models: Any, shown: Callable[..., str]) -> None:
    lines = tree(shown, structure(models.write(models.qwen3_06b)))
    words = [line.split()[0] for line in lines]
    assert words == [
        *("name", "model", "embed_tokens.weight", "layers", "input_layernorm.weight", "self_attn", "q_proj.weight"),
        *("q_norm.weight", "k_proj.weight", "k_norm.weight", "v_proj.weight", "o_proj.weight"),
        *("post_attention_layernorm.weight", "mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight"),
        "norm.weight",
    ]
    assert lines[3].split() == ["layers", "0", "…", "27", "(28", "×)", "each", "15.7", "M", "31.5", "MB"]
    assert lines[6].split() == ["q_proj.weight", "(2048,", "1024)", "BF16", "2.1", "M", "4.2", "MB"]


def test_layers_of_a_gguf_are_folded_into_groups_that_are_equal(models: Any, shown: Callable[..., str]) -> None:
    better = {f"blk.{i}.ffn_down.weight": "Q6_K" for i in (0, 3)} | {f"blk.{i}.ffn_down.weight": "Q4_K" for i in (1, 2)}
    lines = tree(shown, structure(models.gguf(better)))
    first = next(i for i, line in enumerate(lines) if "layers 0, 3 (2 ×)" in line)
    second = next(i for i, line in enumerate(lines) if "layers 1, 2 (2 ×), as 0 except" in line)
    assert [line.split()[0] for line in lines[second + 1 :]] == ["mlp.down_proj.weight", "norm.weight"]
    assert "Q4_K" in lines[second + 1]
    assert sum("Q6_K" in line for line in lines[first:second]) == 1


def test_layers_with_little_in_common_are_told_in_full(models: Any, shown: Callable[..., str]) -> None:
    tensors = {f"l.{i}.{name}.weight": ("F32", (i + 1, 2)) for i in range(2) for name in ("a", "b", "c")}
    lines = tree(shown, structure(models.write({}, tensors=tensors)))
    assert [line.split()[0] for line in lines] == ["name", *["l", "a.weight", "b.weight", "c.weight"] * 2]


def test_what_a_damaged_layer_lacks_is_told(models: Any, shown: Callable[..., str]) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]

    lines = tree(shown, structure(models.write(change=damage)))
    at = next(i for i, line in enumerate(lines) if "layers 1, as 0 except" in line)
    assert lines[at + 1].split() == ["mlp.up_proj.weight", "missing"]


def test_what_is_not_counted_says_why(models: Any, shown: Callable[..., str]) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = ("BF16", (320, 32))
        tensors["extra.weight"] = ("BF16", (2, 2))

    lines = tree(shown, structure(models.write(change=change)))
    marks = {line.split()[0]: line.split()[-3] for line in lines if "lm_head" in line or "extra" in line}
    assert marks == {"lm_head.weight": "tied", "extra.weight": "unused"}


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_no_line_is_wider_than_the_console(models: Any, shown: Callable[..., str], width: int) -> None:
    tensors = {f"模型.层.{i}.{'很长的名字' * i}.权重": ("BF16", (151936, 1024)) for i in range(9)}
    for found in (structure(models.write()), structure(models.write({}, tensors=tensors))):
        assert max(map(cell_len, tree(shown, found, width))) <= width


def test_experts_fold_inside_folded_layers(models: Any, shown: Callable[..., str]) -> None:
    tensors = {f"layers.{i}.experts.{j}.up.weight": ("F32", (2, 2)) for i in range(3) for j in range(8)}
    lines = tree(shown, structure(models.write({}, tensors=tensors)))
    assert [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in lines[1:]] == [
        "layers 0 … 2 (3 ×)",
        "experts 0 … 7 (8 ×)",
        "up.weight",
    ]


@pytest.mark.weights
def test_a_real_gguf_fits_in_eighty_columns(qwen_coder_gguf: Path, shown: Callable[..., str]) -> None:
    lines = tree(shown, structure(qwen_coder_gguf))
    assert len(lines) < 40
    assert max(map(cell_len, lines)) <= 80
