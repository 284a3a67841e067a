"""The tokenizer against the `tokenizers` and `transformers` libraries, on text of many kinds."""

from __future__ import annotations

import json
import random
import resource
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Pipeline

from qwill.errors import ContextLengthError, PromptError, TokenizerError
from qwill.tokenizer import Tokenizer

FRAGMENTS = [
    *("Hello", "world", "it's", "WE'LL", "naïve", "don't", "ﬁn", "Å", "x_1", "CamelCase", "…", "—", "“q”"),
    *(
        "你好",
        "世界",
        "今天天气很好。",
        "日本語テスト",
        "한국어",
        "مرحبا بالعالم",
        "שלום",
        "Ελληνικά",
        "Привет",
        "हिन्दी",
        "ไทย",
    ),
    *("0", "7", "42", "2024", "3.14159", "1,000,000", "٣٤", "①", "½"),
    *("😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇨🇳", "\u200d", "\ufeff", "\u00a0", "\u3000", "\u2028"),
    *("é", "e\u0301", "n\u0303", "한", "ế", "ﷺ", "Ω"),
    *(" ", "  ", "\t", "\n", "\r\n", "\n\n", " \n ", "\r", "\x00", "\x7f", "\x0b"),
    *(
        "def f(x):\n    return x",
        "{'a': [1]}",
        "<div>",
        "&amp;",
        "a += b--;",
        "//",
        "#!",
        "$x",
        "\\n",
        "!!!",
        "?!",
        "<|",
        "|>",
    ),
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("<think>>", special=False, normalized=False),
    AddedToken("<mask>", special=True, normalized=False, lstrip=True, rstrip=True),
    AddedToken("<word>", special=True, normalized=False, single_word=True),
    AddedToken("<結>", special=True, normalized=False),
]


def lines(count: int = 1000) -> list[str]:
    """The same lines in every run: fragments of many writing systems, joined with and without space; some in NFD."""
    chance = random.Random(2)
    made = []
    for number in range(count):
        words = chance.choices(FRAGMENTS, k=chance.randint(1, 12))
        line = chance.choice(["", " ", "\n"]).join(words)
        made.append(unicodedata.normalize("NFD", line) if number % 5 == 0 else line)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer with Qwen's rules, trained here, as a model's folder."""
    pipeline = Pipeline(models.BPE())
    pipeline.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    pipeline.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    pipeline.train_from_iterator(lines(300), trainer)
    pipeline.add_tokens(ADDED)
    folder = tmp_path_factory.mktemp("tokenizer")
    pipeline.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> Pipeline:
    return Pipeline.from_file(str(folder / "tokenizer.json"))


def test_a_thousand_lines_get_the_librarys_ids(tokenizer: Tokenizer, library: Pipeline) -> None:
    for line in lines():
        assert tokenizer.encode(line) == library.encode(line, add_special_tokens=False).ids, repr(line)


def test_a_thousand_lines_come_back_in_composed_form(tokenizer: Tokenizer, library: Pipeline) -> None:
    for line in lines():
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == library.decode(ids) == unicodedata.normalize("NFC", line)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*(str(token.content) for token in ADDED), " ", "\n", "a", "<", "é", "7"]), max_size=8))
def test_parsed_special_tokens_are_the_librarys(tokenizer: Tokenizer, library: Pipeline, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert tokenizer.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*(str(token.content) for token in ADDED), "|", "<", ">", "im_end", " "]), max_size=8))
def test_text_never_becomes_an_added_token(tokenizer: Tokenizer, pieces: list[str]) -> None:
    ids = tokenizer.encode("".join(pieces))
    assert not set(ids) & set(tokenizer.special_tokens.values())
    assert tokenizer.decode(ids) == "".join(pieces)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_ids_decode_as_the_library_decodes_them(
    tokenizer: Tokenizer, library: Pipeline, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    for skip in (True, False):
        text = library.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == text
        stream = tokenizer.detokenizer(skip_special_tokens=skip)
        assert "".join([*map(stream.push, ids), stream.finish()]) == text


def test_parts_join_texts_and_ids(tokenizer: Tokenizer) -> None:
    end = tokenizer.special_tokens["<|im_end|>"]
    assert tokenizer.encode_parts(["<|im_end|>", end, ""]) == [*tokenizer.encode("<|im_end|>"), end]


def test_the_vocabulary_ends_with_its_last_real_token(tokenizer: Tokenizer, library: Pipeline) -> None:
    assert tokenizer.vocab_size == max(library.get_vocab().values()) + 1 == 700 + len(ADDED)


def test_the_vocabulary_is_the_librarys(tokenizer: Tokenizer, library: Pipeline) -> None:
    assert tokenizer.vocabulary == library.get_vocab()


@pytest.mark.parametrize("token_id", [-1, 708, 2**31, 2**40])
def test_an_id_without_a_token_is_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(PromptError, match=r"no token with the id .*\n.*0 … 707"):
        tokenizer.decode([token_id])
    with pytest.raises(PromptError):
        tokenizer.detokenizer().push(token_id)


@pytest.mark.parametrize("text", ["ab\ud800", "\udc80", "\ud83d\ude00"])
def test_half_a_surrogate_pair_is_refused_with_its_place(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(PromptError, match=f"character {0 if text[0] != 'a' else 2}"):
        tokenizer.encode(text)
    with pytest.raises(PromptError):
        tokenizer.encode(text, parse_special=True)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["list"]])
def test_what_is_not_text_is_refused(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(PromptError, match="must be text"):
        tokenizer.encode(text)


def test_a_long_text_is_encoded_in_pieces_and_gets_the_same_ids(tokenizer: Tokenizer, library: Pipeline) -> None:
    text = "\n".join(lines(1000) * 6)
    assert len(text) > 150_000
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_megabytes_of_text_need_little_memory(tokenizer: Tokenizer) -> None:
    text = "the same short line of plain words, again and again\n" * 25_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = tokenizer.encode(text)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert tokenizer.decode(ids) == text
    assert grown < 100, f"{grown:.0f} MiB for 1.3 MB of text"  # in one piece: 200


def test_a_tokenizer_whose_words_cross_lines_is_never_cut(folder: Path, tmp_path: Path) -> None:
    description = json.loads((folder / "tokenizer.json").read_text())
    description["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    text = "some words\nMore words, and more. " * 3000
    whole = Pipeline.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert Tokenizer.load(tmp_path).encode(text) == whole


def test_a_rule_that_fails_on_a_text_is_a_typed_error(folder: Path, tmp_path: Path) -> None:
    description = json.loads((folder / "tokenizer.json").read_text())
    description["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$"
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    hostile = Tokenizer.load(tmp_path)
    assert hostile.decode(hostile.encode("aaa")) == "aaa"
    with pytest.raises(PromptError, match="the text cannot be encoded"):
        hostile.encode("a" * 60 + "!")


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(qwen3_tokenizer_dir)


@pytest.fixture(scope="module")
def hf_qwen3(qwen3_tokenizer_dir: Path) -> Iterator[Any]:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(qwen3_tokenizer_dir)


@pytest.mark.weights
def test_qwen3_gives_transformers_ids(qwen3: Tokenizer, hf_qwen3: Any) -> None:
    text = "<|im_start|>user\n你好 <think>\n\n</think> <tool_call>x</tool_call><|im_end|>\n"
    assert qwen3.encode(text, parse_special=True) == hf_qwen3.encode(text)
    for line, ids in zip(lines(), hf_qwen3(lines())["input_ids"], strict=True):
        assert qwen3.encode(line) == ids, repr(line)
        assert qwen3.decode(ids) == hf_qwen3.decode(ids)


@pytest.mark.weights
def test_qwen3_is_described_as_published(qwen3: Tokenizer) -> None:
    assert qwen3.vocab_size == 151669
    assert qwen3.special_tokens["<|im_end|>"] == 151645 in qwen3.eos_token_ids
    assert (qwen3.bos_token_id, qwen3.add_bos) == (None, False)
    assert 151645 not in qwen3.encode("<|im_end|>")


@pytest.mark.weights
def test_qwen_coders_gguf_gives_the_published_ids(qwen_coder_gguf: Path, qwen3_tokenizer_dir: Path) -> None:
    # Qwen2.5 and Qwen3 share vocabulary and merges. transformers' GGUF reader leaves NFC out, so it is no oracle here.
    tokenizer = Tokenizer.load(qwen_coder_gguf)
    published = Pipeline.from_file(str(qwen3_tokenizer_dir / "tokenizer.json"))
    for line in lines():
        assert tokenizer.encode(line) == published.encode(line, add_special_tokens=False).ids, repr(line)
    assert tokenizer.vocab_size == 151665
    assert set(tokenizer.eos_token_ids) == {151645, 151643}


@pytest.mark.weights
@pytest.mark.slow
def test_smollm2s_gguf_gives_transformers_ids(smollm2_gguf: Path) -> None:
    import transformers

    tokenizer = Tokenizer.load(smollm2_gguf)
    oracle = transformers.AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    # What SmolLM2's tokenizer.json has and transformers' GGUF reader leaves out: digits stand alone, also " ①".
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    for line, ids in zip(lines(), oracle(lines())["input_ids"], strict=True):
        assert tokenizer.encode(line) == ids, repr(line)
        assert tokenizer.decode(ids) == oracle.decode(ids, clean_up_tokenization_spaces=False)
    text = "<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.encode(text, parse_special=True) == oracle.encode(text)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids[0] == 2


def test_a_text_that_is_far_too_long_is_refused_without_encoding_all_of_it(tiny_tokenizer: Tokenizer) -> None:
    lines = "a line of text\n" * 2_000_000
    start = time.process_time()
    for text in (lines, "x" * 30_000_000):
        with pytest.raises(ContextLengthError, match="more than 4096 tokens"):
            tiny_tokenizer.encode(text, most=4096)
    assert time.process_time() - start < 2
    count = len(tiny_tokenizer.encode("one, two, three"))
    assert len(tiny_tokenizer.encode("one, two, three", most=count)) == count
    with pytest.raises(ContextLengthError, match=f"more than {count - 1} tokens"):
        tiny_tokenizer.encode("one, two, three", most=count - 1)
