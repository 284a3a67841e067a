"""A tokenizer from GGUF metadata: the ids of the published tokenizer.json files' rules; hostile metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers, trainers

from qwill.errors import TokenizerError
from qwill.gguf_vocab import read_gguf_vocab
from qwill.tokenizer import Tokenizer

# The "normalizer" and "pre_tokenizer" of the published tokenizer.json files of Qwen3, Llama 3, SmolLM2 and GPT-2.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "qwen2": ({"type": "NFC"}, [{"type": "Split", "regex": r"\p{N}"}, {"type": "ByteLevel", "use_regex": False}]),
    "llama-bpe": (None, [{"type": "Split", "regex": r"\p{N}{1,3}"}, {"type": "ByteLevel", "use_regex": False}]),
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}]),
    "gpt-2": (None, [{"type": "ByteLevel", "use_regex": True}]),
}
LINES = [
    *(
        "it's 12345 o'clock, WE'LL see 3.14",
        "e\u0301 é ﬁ Å",
        "a  b\t\tc\r\n\r\n  d\n",
        "你好，世界 123",
        "مرحبا 42",
        "①½²",
    ),
    *("def f(x):\n    return x != 1", "👩‍👩‍👧‍👦🏽 ok", "  leading", "trailing  \n ", "!!!\n\n", "don't Don'T"),
    *("x_1=2;", "\u3000全角"),
]
EXTRA = ["<|endoftext|>", "<|im_end|>", "<tool_call>", "[PAD7]"]


def published(pre: str) -> Pipeline:
    """A pipeline as its tokenizer.json describes it, without vocabulary."""
    normalizer, steps = PUBLISHED[pre]
    description = json.loads(Pipeline(models.BPE()).to_str())
    description["normalizer"] = normalizer
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [completed(step) for step in steps]}
    description["model"]["ignore_merges"] = pre == "llama-bpe"
    return Pipeline.from_str(json.dumps(description))


def completed(step: dict[str, Any]) -> dict[str, Any]:
    """A step with the fields that are the same everywhere."""
    if step["type"] == "Split":
        pattern = {"Regex": SPLIT.replace("NUMBER", step["regex"])}
        return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {**step, "add_prefix_space": False, "trim_offsets": True} if step["type"] == "ByteLevel" else step


def trained(pre: str) -> Pipeline:
    """A small vocabulary on top of the published rules."""
    pipeline = published(pre)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    pipeline.train_from_iterator(LINES * 3, trainer)
    return pipeline


def metadata_of(pipeline: Pipeline, pre: str) -> dict[str, Any]:
    """What a GGUF file would say of this tokenizer, with two control tokens, one added token and one unused id."""
    model = json.loads(pipeline.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *EXTRA],
        "tokenizer.ggml.token_type": np.array([1] * len(tokens) + [3, 3, 4, 5], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.fixture(scope="module")
def qwen2() -> dict[str, Any]:
    return metadata_of(trained("qwen2"), "qwen2")


@pytest.mark.parametrize("pre", PUBLISHED)
def test_the_ids_are_those_of_the_published_rules(pre: str) -> None:
    oracle = trained(pre)
    plain = read_gguf_vocab(metadata_of(oracle, pre), "x.gguf").plain
    for line in [*LINES, "\n".join(LINES), *map(" ".join, zip(LINES, LINES[3:], strict=False))]:
        assert plain.encode(line).ids == oracle.encode(line).ids, repr(line)


def test_everything_else_is_read_too(qwen2: dict[str, Any]) -> None:
    parts = read_gguf_vocab(qwen2, "x.gguf")
    size = len(qwen2["tokenizer.ggml.tokens"])
    assert {i: (token.content, token.special) for i, token in parts.added.items()} == {
        size - 4: ("<|endoftext|>", True),
        size - 3: ("<|im_end|>", True),
        size - 2: ("<tool_call>", False),
    }
    assert (parts.bos_token_id, parts.add_bos) == (size - 4, False)
    assert parts.named_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert parts.chat_templates == {"default": "{{ messages }}"}


def test_known_ends_of_text_end_an_answer_besides_the_one_that_is_named(qwen2: dict[str, Any]) -> None:
    size = len(qwen2["tokenizer.ggml.tokens"])
    assert read_gguf_vocab(qwen2, "x.gguf").eos_token_ids == (size - 3, size - 4)


def test_unused_ids_are_no_tokens(qwen2: dict[str, Any]) -> None:
    assert Tokenizer(read_gguf_vocab(qwen2, "x.gguf")).vocab_size == len(qwen2["tokenizer.ggml.tokens"]) - 1


def test_control_tokens_cannot_be_spelled(qwen2: dict[str, Any]) -> None:
    parts = read_gguf_vocab(qwen2, "x.gguf")
    for text in EXTRA:
        assert not set(parts.plain.encode(text).ids) & set(parts.added)


def test_a_file_written_by_the_gguf_package_is_read(tmp_path: Path, qwen2: dict[str, Any]) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(qwen2["tokenizer.ggml.tokens"])
    writer.add_token_types(qwen2["tokenizer.ggml.token_type"].tolist())
    writer.add_token_merges(qwen2["tokenizer.ggml.merges"])
    writer.add_eos_token_id(qwen2["tokenizer.ggml.eos_token_id"])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = Tokenizer.load(path)
    assert tokenizer.decode(tokenizer.encode("it's 12345 你好")) == "it's 12345 你好"
    assert tokenizer.chat_template == "{{ messages }}"


WRONG: list[Any] = [
    *(3, 3.5, True, "text", [1, 2], [b"x"], {}, np.zeros(3, np.uint8), np.zeros(3, np.float32)),
    *(["a", 1], np.zeros((2, 2), np.int32), [["a"]]),
]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: f"{type(value).__name__} {value!r:.20}")
@pytest.mark.parametrize("key", ["model", "pre", "tokens", "token_type", "merges", "eos_token_id", "add_bos_token"])
def test_a_wrong_type_is_refused_by_name(qwen2: dict[str, Any], key: str, value: Any) -> None:
    right = {"model": str, "pre": str, "eos_token_id": int, "add_bos_token": bool}
    if type(value) is right.get(key):
        return
    with pytest.raises(TokenizerError) as caught:
        read_gguf_vocab({**qwen2, f"tokenizer.ggml.{key}": value}, "x.gguf")
    assert caught.value.where == "x.gguf"


@pytest.mark.parametrize("key", ["model", "pre", "tokens", "token_type", "merges"])
def test_a_missing_key_is_refused_by_name(qwen2: dict[str, Any], key: str) -> None:
    lacking = {name: value for name, value in qwen2.items() if name != f"tokenizer.ggml.{key}"}
    with pytest.raises(TokenizerError, match=rf"tokenizer\.ggml\.{key} is missing"):
        read_gguf_vocab(lacking, "x.gguf")


@pytest.mark.parametrize("key", ["tokens", "token_type"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_count_that_is_off_by_one_is_refused(qwen2: dict[str, Any], key: str, change: int) -> None:
    value = qwen2[f"tokenizer.ggml.{key}"]
    changed = value[:-1] if change < 0 else [*value, "more"] if key == "tokens" else np.append(value, [1])
    with pytest.raises(TokenizerError, match="entries for"):
        read_gguf_vocab({**qwen2, f"tokenizer.ggml.{key}": changed}, "x.gguf")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("model", "llama", "model 'llama' is not supported"),
        ("pre", "tekken", "pre-tokenizer 'tekken' is not supported"),
        ("merges", ["a b c"], "not two tokens"),
        ("merges", ["ab"], "not two tokens"),
        ("merges", [" a"], "not two tokens"),
        ("merges", ["no such"], "do not fit the vocabulary"),
        ("merges", ["< |"], "do not fit the vocabulary"),
        ("eos_token_id", -1, "eos_token_id = -1"),
        ("eos_token_id", 2**31, "eos_token_id = 2147483648"),
    ],
)
def test_what_does_not_fit_is_refused(qwen2: dict[str, Any], key: str, value: Any, problem: str) -> None:
    with pytest.raises(TokenizerError, match=problem):
        read_gguf_vocab({**qwen2, f"tokenizer.ggml.{key}": value}, "x.gguf")


def test_an_unknown_token_type_is_refused(qwen2: dict[str, Any]) -> None:
    kinds = qwen2["tokenizer.ggml.token_type"].copy()
    kinds[3] = 9
    with pytest.raises(TokenizerError, match="values other than"):
        read_gguf_vocab({**qwen2, "tokenizer.ggml.token_type": kinds}, "x.gguf")


def test_a_vocabulary_without_ordinary_tokens_is_refused(qwen2: dict[str, Any]) -> None:
    control = np.full(len(qwen2["tokenizer.ggml.tokens"]), 3, np.int32)
    with pytest.raises(TokenizerError, match="no ordinary token"):
        read_gguf_vocab({**qwen2, "tokenizer.ggml.token_type": control}, "x.gguf")


def test_the_same_token_twice_is_refused(qwen2: dict[str, Any]) -> None:
    tokens = list(qwen2["tokenizer.ggml.tokens"])
    tokens[5] = tokens[6]
    with pytest.raises(TokenizerError, match="twice"):
        read_gguf_vocab({**qwen2, "tokenizer.ggml.tokens": tokens}, "x.gguf")


def test_a_chat_template_that_is_no_text_is_refused(qwen2: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="chat_template"):
        read_gguf_vocab({**qwen2, "tokenizer.chat_template": [1]}, "x.gguf")
