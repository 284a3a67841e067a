"""The file that is written is the model that was trained, as `transformers` and as our own readers see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Pipeline
from transformers import Qwen3ForCausalLM

from qwill.config import load_config
from qwill.tokenizer import Tokenizer
from scripts.tiny_corpus import Document
from scripts.tiny_examples import CHAT_TEMPLATE, train_tokenizer
from scripts.tiny_gguf import write_gguf
from scripts.train_tiny import ABOUT, Recipe, config_of

RECIPE = Recipe(vocab_size=320, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=96, context=64)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config_of(RECIPE)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 2)
    return model


@pytest.fixture(scope="module")
def pipeline(texts: list[Document]) -> Pipeline:
    return train_tokenizer(texts, RECIPE.vocab_size)


@pytest.fixture(scope="module")
def file(model: Any, pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, model, pipeline, ABOUT)
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    return path


def test_every_weight_comes_back_within_half_a_step_of_int8(model: Any, file: Path) -> None:
    # transformers takes every Qwen3 in a GGUF file to have heads of 128, so the shape is given to it.
    read = Qwen3ForCausalLM.from_pretrained(file.parent, gguf_file=file.name, config=model.config, dtype=torch.float32)
    found = read.state_dict()
    wanted = model.state_dict()
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        if values.ndim == 1:
            assert torch.equal(found[name], values)
            continue
        groups = values.unflatten(-1, (-1, 32))
        step = groups.abs().amax(-1, keepdim=True) / 127
        error = (found[name].unflatten(-1, (-1, 32)) - groups).abs()
        # The scale is rounded to fp16, which moves the largest of 127 steps by less than a tenth of one.
        assert (error <= 0.6 * step).all(), name


def test_our_reader_finds_the_shape_and_what_ends_an_answer(file: Path) -> None:
    config = load_config(file)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 32)
    assert config.qk_norm
    assert config.tie_word_embeddings
    assert config.max_position_embeddings == 64
    tokenizer = Tokenizer.load(file)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    ends = {tokenizer.special_tokens["<|im_end|>"], tokenizer.special_tokens["<|endoftext|>"]}
    assert set(tokenizer.eos_token_ids) == ends
    assert not tokenizer.add_bos


@pytest.mark.parametrize("text", ["The King's old house, 1234.\n\nNight!", "明月照高楼。", "a\r\n\tb  c", "é🎉", ""])
def test_the_tokenizer_is_the_one_that_was_trained(pipeline: Pipeline, file: Path, text: str) -> None:
    tokenizer = Tokenizer.load(file)
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<think>\n"
    assert tokenizer.encode(chat, parse_special=True) == pipeline.encode(chat).ids
    assert tokenizer.vocab_size == pipeline.get_vocab_size()
