"""Reading a model's folder: what is taken from which file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Pipeline

from qwill.errors import TokenizerError
from qwill.tokenizer_files import TokenizerParts, call_library, read_tokenizer_folder

LETTERS = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def pipeline(model: Any = None) -> Pipeline:
    """One token for each byte, and <s>, </s>, <think> behind them."""
    made = Pipeline(model or models.BPE(LETTERS, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<think>")])
    return made


def read(folder: Path, made: Pipeline | None = None, **files: Any) -> TokenizerParts:
    """Write a folder and read it; `files` are the JSON files by name without ending."""
    (made or pipeline()).save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_tokenizer_folder(folder)


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    parts = read(tmp_path)
    assert {token_id: token.content for token_id, token in parts.added.items()} == {
        256: "<s>",
        257: "</s>",
        258: "<think>",
    }
    assert [parts.added[i].special for i in (256, 257, 258)] == [True, True, False]
    assert (parts.bos_token_id, parts.eos_token_ids, parts.add_bos) == (None, (), False)
    assert (parts.named_tokens, parts.chat_templates) == ({}, {})


def test_named_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    parts = read(tmp_path, tokenizer_config=config)
    assert parts.named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (parts.bos_token_id, parts.eos_token_ids) == (256, (257,))


def test_the_end_is_the_union_of_all_files(tmp_path: Path) -> None:
    parts = read(
        tmp_path,
        tokenizer_config={"eos_token": "</s>"},
        generation_config={"eos_token_id": [257, 256]},
        config={"eos_token_id": 258},
    )
    assert parts.eos_token_ids == (257, 256, 258)


def test_added_tokens_of_the_configuration_are_added(tmp_path: Path) -> None:
    listed = {"258": {"content": "<think>"}, "260": {"content": "<new>", "special": True, "rstrip": True}}
    added = read(tmp_path, tokenizer_config={"added_tokens_decoder": listed}).added
    assert (added[260].content, added[260].special, added[260].rstrip, added[260].lstrip) == (
        "<new>",
        True,
        True,
        False,
    )


def test_a_post_processor_that_adds_the_first_token_sets_add_bos(tmp_path: Path) -> None:
    made = pipeline()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    assert read(tmp_path, made, tokenizer_config={"bos_token": "<s>"}).add_bos is True
    assert read(tmp_path, made, tokenizer_config={"bos_token": "<s>", "add_bos_token": False}).add_bos is False
    assert read(tmp_path, tokenizer_config={"bos_token": "<s>", "add_bos_token": True}).add_bos is True


def test_the_template_file_comes_before_the_configurations(tmp_path: Path) -> None:
    config = {"chat_template": "old"}
    assert read(tmp_path, tokenizer_config=config).chat_templates == {"default": "old"}
    (tmp_path / "chat_template.jinja").write_bytes("新\r\n".encode())
    assert read(tmp_path, tokenizer_config=config).chat_templates == {"default": "新\r\n"}


def test_named_chat_templates_keep_their_names(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    parts = read(tmp_path, tokenizer_config={"chat_template": listed})
    assert parts.chat_templates == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"tokenizer_config": "{"}, "not a JSON file"),
        ({"tokenizer_config": "[" * 100_000}, "not a JSON file"),
        ({"tokenizer_config": "[]"}, "not a JSON object"),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, "eos_token = '<|im_end|>' is not a token"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "<x>"}}}}, "malformed"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9" * 30: {"content": "<x>"}}}}, "malformed"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": {"content": 5}}}}, "malformed"),
        ({"tokenizer_config": {"added_tokens_decoder": {"257": {"content": "<other>"}}}}, "gives the id 257"),
        ({"tokenizer_config": {"added_tokens_decoder": {"300": {"content": "</s>"}}}}, "gives the id 300"),
        ({"tokenizer_config": {"add_bos_token": True}}, "no bos_token"),
        ({"tokenizer_config": {"chat_template": 3}}, "chat_template is malformed"),
        ({"tokenizer_config": {"chat_template": [{"name": "default"}]}}, "chat_template is malformed"),
        ({"generation_config": {"eos_token_id": "2"}}, "eos_token_id holds '2'"),
        ({"generation_config": {"eos_token_id": [True]}}, "eos_token_id holds True"),
        ({"config": {"eos_token_id": [-1]}}, "eos_token_id holds -1"),
        ({"config": {"eos_token_id": 2**40}}, "eos_token_id holds 1099511627776"),
    ],
)
def test_a_malformed_neighbour_is_refused_with_its_name(tmp_path: Path, files: dict[str, Any], problem: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        read(tmp_path, **files)
    assert problem in caught.value.what
    assert next(iter(files)) in caught.value.where


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "Nonsense"}}', "\x00\x01", "[" * 100_000])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        read_tokenizer_folder(tmp_path)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (models.WordPiece({"a": 0}, unk_token="a"), "WordPiece"),
        (models.Unigram([("a", 0.0)]), "Unigram"),
        (models.WordLevel({"a": 0}, unk_token="a"), "WordLevel"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path: Path, model: Any, kind: str) -> None:
    with pytest.raises(TokenizerError, match=rf"kind {kind} is not supported.*\n.*\nhint: supported: byte-level BPE"):
        read(tmp_path, pipeline(model))


def test_other_decoders_are_refused_by_name(tmp_path: Path) -> None:
    made = pipeline()
    made.decoder = decoders.Metaspace()
    with pytest.raises(TokenizerError, match="decoder of the kind Metaspace"):
        read(tmp_path, made)


def test_byte_fallback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="byte-fallback"):
        read(tmp_path, pipeline(models.BPE(LETTERS, [], byte_fallback=True)))


def test_a_post_processor_that_adds_other_tokens_is_refused(tmp_path: Path) -> None:
    made = pipeline()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 257)])
    with pytest.raises(TokenizerError, match=r"adds the tokens \[257\] to every text"):
        read(tmp_path, made, tokenizer_config={"bos_token": "<s>"})


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_a_control_token_that_text_can_spell_is_refused(tmp_path: Path, ignore_merges: bool) -> None:
    vocab = {**LETTERS, "<s": 256, "<s>": 257, "</s>": 258, "<think>": 259}
    merges = [] if ignore_merges else [("<", "s"), ("<s", ">")]
    with pytest.raises(TokenizerError, match="the merges spell the control token '<s>'"):
        read(tmp_path, pipeline(models.BPE(vocab, merges, ignore_merges=ignore_merges)))


def test_a_control_token_in_the_vocabulary_that_no_merge_reaches_is_fine(tmp_path: Path) -> None:
    vocab = {**LETTERS, "<s>": 256, "</s>": 257, "<think>": 258}
    parts = read(tmp_path, pipeline(models.BPE(vocab, [])))
    assert parts.plain.encode("<s>").ids == [LETTERS[letter] for letter in "<s>"]


def changed(folder: Path, **keys: Any) -> TokenizerParts:
    """Read a folder whose tokenizer.json has other values for these keys; those of `model` are added to its own."""
    description = json.loads(pipeline().to_str())
    description["model"] |= keys.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps(description | keys))
    return read_tokenizer_folder(folder)


REPLACE = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
UNKNOWN_SPECIAL = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"normalizer": REPLACE}, "normalizer of the kind Replace"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, REPLACE]}}, "of the kind Replace"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "of the kind Precompiled"),
        ({"normalizer": {"pattern": {"String": ""}, "content": "x"}}, "normalizer of the kind None"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, "pre_tokenizer of the kind Metaspace"),
        ({"pre_tokenizer": "Split"}, "pre_tokenizer of the kind Split"),
        ({"post_processor": UNKNOWN_SPECIAL}, "tokenizers? "),
        ({"model": {"dropout": 0.5}}, "dropout"),
        ({"model": {"vocab": {}, "merges": []}, "added_tokens": []}, "vocabulary is empty"),
    ],
)
def test_what_the_library_or_the_model_cannot_bear_is_refused(
    tmp_path: Path, keys: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TokenizerError, match=problem):
        changed(tmp_path, **keys)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"normalizer": REPLACE})[:-1] + "," + pipeline().to_str()[1:]
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="a key stands twice"):
        read_tokenizer_folder(tmp_path)


def test_padding_and_truncation_are_not_done(tmp_path: Path) -> None:
    padding = {"strategy": {"Fixed": 4_000_000_000}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    assert changed(tmp_path, padding=padding).plain.encode("ab").ids == [LETTERS["a"], LETTERS["b"]]


@pytest.mark.parametrize(
    ("name", "limit"), [("tokenizer.json", 64), ("tokenizer_config.json", 16), ("chat_template.jinja", 1)]
)
def test_a_file_that_is_too_large_is_refused(tmp_path: Path, name: str, limit: int) -> None:
    pipeline().save(str(tmp_path / "tokenizer.json"))
    with (tmp_path / name).open("ab") as file:
        file.truncate((limit << 20) + 1)
    with pytest.raises(TokenizerError, match=f"{name} is larger than {limit} MiB"):
        read_tokenizer_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    pipeline().save(str(folder / "tokenizer.json"))
    outside.write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(TokenizerError, match="leads out of the model's folder") as caught:
        read_tokenizer_folder(folder)
    assert name in caught.value.where


def test_links_to_the_blobs_of_the_cache_are_followed(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    pipeline().save(str(blobs / "1"))
    (folder / "tokenizer.json").symlink_to(blobs / "1")
    assert 256 in read_tokenizer_folder(folder).added


@pytest.mark.parametrize(
    "config", [{"eos_token": "\ud800"}, {"added_tokens_decoder": {"300": {"content": "<\ud800>"}}}]
)
def test_half_a_surrogate_pair_in_a_token_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=r"surrogate|malformed"):
        read(tmp_path, tokenizer_config=config)


def test_a_panic_of_the_library_is_a_typed_error_and_a_stop_is_not() -> None:
    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(TokenizerError, match="library failed: panic"):
        call_library(fail, BaseException("panic"))
    for stop in (KeyboardInterrupt, SystemExit):
        with pytest.raises(stop):
            call_library(fail, stop())
