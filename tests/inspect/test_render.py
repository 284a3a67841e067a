from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from qwill.errors import SettingError
from qwill.inspect.render import render_structure
from qwill.inspect.structure import Structure, structure

WIDTHS = [40, 60, 80, 120]


def drawn(shown: Callable[..., str], found: Structure, *, width: int = 80, terminal: bool = False, **what: Any) -> str:
    return shown(lambda console: render_structure(found, console, **what), width=width, terminal=terminal)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def qwen3(models: Any) -> Structure:
    """Qwen3-0.6B as it is published: with the redundant head."""

    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    return structure(models.write(models.qwen3_06b, change=change), name="qwen3-0.6b")


def test_the_overview_tells_what_is_counted_and_what_not(qwen3: Structure, shown: Callable[..., str]) -> None:
    text = words(drawn(shown, qwen3))
    for part in (
        "qwen3-0.6b safetensors, 1 file, 1.5 GB",
        "embedding 155.6 M 26.1 %",
        "language model 440.5 M 73.9 %; 28 layers and the last norm",
        "lm_head tied the embedding's matrix again",
        "total 596.0 M 596,049,920",
        "in the files 751.6 M not counted: lm_head.weight (tied copy)",
        "layers 0 … 27 (28 ×) each 15.7 M 31.5 MB",
        "16 × 128 = 2048, not the hidden_size 1024",
        "weights in fp32 2.4 GB",
        "weights in bf16 1.2 GB",
        "KV cache, bf16 114.7 kB for each token 117.4 MB for 1,024 tokens 4.7 GB for 40,960 tokens",
    ):
        assert part in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("what", [{}, {"layer": 3}])
def test_no_line_is_too_wide_or_ends_in_blanks(
    qwen3: Structure, shown: Callable[..., str], width: int, what: dict[str, Any]
) -> None:
    lines = drawn(shown, qwen3, width=width, **what).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []


def test_in_eighty_columns_nothing_is_cut(qwen3: Structure, shown: Callable[..., str]) -> None:
    assert drawn(shown, qwen3, width=80).count("…") == 1  # of "0 … 27"
    assert "  norm.weight" in drawn(shown, qwen3, width=80)
    assert "post_attention_layernorm " in drawn(shown, qwen3, width=60)


def test_off_a_terminal_there_is_no_colour(qwen3: Structure, shown: Callable[..., str]) -> None:
    assert "\x1b" not in drawn(shown, qwen3)
    assert "\x1b[1m" in drawn(shown, qwen3, terminal=True)


def test_a_layer_is_a_worked_example(qwen3: Structure, shown: Callable[..., str]) -> None:
    text = words(drawn(shown, qwen3, layer=5, width=120))
    for part in (
        "Layer 5",
        "C = 1024 hidden_size",
        "self_attn.q_proj (T, 16, 128) (Hq·D, C) = (2048, 1024) BF16 queries: what each head looks for",
        "self_attn.k_proj (T, 8, 128) (Hkv·D, C) = (1024, 1024) BF16 keys",
        "mlp.down_proj (T, 1024) (C, F) = (1024, 3072) BF16",
        "rope (T, 16, 128) turn queries and keys",
    ):
        assert part in text
    assert "Memory" not in text


def test_biases_and_missing_weights_are_in_the_layer(models: Any, shown: Callable[..., str]) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        del tensors["model.layers.0.mlp.up_proj.weight"]

    found = structure(models.write(models.tiny | {"model_type": "qwen2", "head_dim": 8}, change=damage))
    text = words(drawn(shown, found, layer=0, width=120))
    assert "(Hq·D, C) = (32, 32) BF16 + bias (32) BF16 queries" in text
    assert "(F, C) missing the inner numbers" in text


def test_a_layer_that_is_not_there_prints_nothing(qwen3: Structure, shown: Callable[..., str]) -> None:
    printed: list[str] = []
    with pytest.raises(SettingError):
        printed.append(drawn(shown, qwen3, layer=28))
    assert printed == []


def test_every_tensor_has_a_whole_line_in_a_pipe(qwen3: Structure, shown: Callable[..., str]) -> None:
    lines = {line.split()[0]: line for line in drawn(shown, qwen3, tensors=True, width=60).splitlines() if line}
    for tensor in qwen3.tensors:
        assert re.fullmatch(rf"\S+ +BF16 .* {tensor.nbytes} +{tensor.offset}", lines[tensor.name])


def test_a_model_of_which_only_the_headers_are_here_says_so(qwen3: Structure, shown: Callable[..., str]) -> None:
    remote = dataclasses.replace(qwen3, source="huggingface")
    assert drawn(shown, remote).startswith("qwen3-0.6b  safetensors, 1 file, 1.5 GB, headers read from huggingface\n")


def test_in_a_narrow_terminal_tensors_are_told_in_two_lines(qwen3: Structure, shown: Callable[..., str]) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(shown, qwen3, tensors=True, width=60, terminal=True))
    assert max(map(cell_len, text.splitlines())) <= 60


def test_what_does_not_fit_is_a_warning_at_the_end(models: Any, shown: Callable[..., str]) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        for name in list(tensors)[3:15]:
            del tensors[name]
        tensors["visual.weight"] = ("F32", (2, 2))
        tensors["model.norm.weight"] = ("BF16", (31,))

    text = words(drawn(shown, structure(models.write(change=damage)), width=120))
    end = text[text.index("warning:") :]
    assert "warning: tensors are missing model." in end
    assert "and 4 more" in end
    assert "warning: the model has no use for these tensors visual.weight (2, 2)" in end
    assert "of another shape than the configuration asks for model.norm.weight: (31), the conf" in end


def test_a_model_without_a_configuration_is_shown(models: Any, shown: Callable[..., str]) -> None:
    folder = models.write()
    (folder / "config.json").unlink()
    text = drawn(shown, structure(folder))
    assert "Configuration" not in text
    assert "warning: there is no configuration that can be read\n  there is no config.json" in text
    assert "q_proj.weight" in text


def test_texts_of_strangers_are_neither_markup_nor_orders_to_the_terminal(
    models: Any, shown: Callable[..., str]
) -> None:
    tensors = {"[red]a[/red].\x1b]0;title\x07\u202e.weight": ("F32", (2, 2)), "视觉塔.权重": ("F32", (2, 2))}
    found = structure(models.write(models.tiny, tensors=tensors), name="\x1b[2J:smile:")
    for what in ({}, {"tensors": True}):
        text = drawn(shown, found, **what)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
        assert "[red]a[/red]" in text
        assert ":smile:" in text
    assert "视觉塔" in text


def test_a_model_without_tensors_can_be_shown(models: Any, shown: Callable[..., str]) -> None:
    found = structure(models.write(tensors={}))
    assert "tensors are missing" in drawn(shown, found)
    assert drawn(shown, found, tensors=True)


@pytest.mark.weights
@pytest.mark.parametrize("width", WIDTHS)
def test_real_ggufs_can_be_shown(smollm2_gguf: Path, shown: Callable[..., str], width: int) -> None:
    lines = drawn(shown, structure(smollm2_gguf, name="smollm2-135m"), width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "total 134.5 M 134,515,008" in words("\n".join(lines))
    assert "warning" not in "\n".join(lines)
