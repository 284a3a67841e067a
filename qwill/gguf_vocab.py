"""A tokenizer out of a GGUF file's metadata: vocabulary, merges and the pre-tokenizer that its name stands for.

GGUF stores no pre-tokenizer, only a name (`tokenizer.ggml.pre`), so each name's rule is written here; a name that
is not is refused, because a wrong rule gives wrong tokens without an error. Knows only the metadata, not the file.
Source: the GGUF specification, section "Tokenizer", and the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Pipeline
from tokenizers.pre_tokenizers import PreTokenizer

from qwill.errors import TokenizerError
from qwill.tokenizer_files import TokenizerParts

__all__ = ["read_gguf_vocab"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_TOKEN_TYPES = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_WORDS_AND_SPACE}"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_WORDS_AND_SPACE}"

_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_END_OF_TEXT = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")
"""Control tokens that end an answer whatever the file says: GGUF keeps one end id, the model may have more."""


def read_gguf_vocab(metadata: Mapping[str, Any], where: str) -> TokenizerParts:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        TokenizerError: when a key is missing, has the wrong type or length, or names something that is not supported.
    """
    reader = _Reader(metadata, where)
    model = reader.text("model")
    if model != "gpt2":
        raise TokenizerError(
            f"tokenizer model {model!r} is not supported", where=where, hint="supported: gpt2 (byte-level BPE)"
        )
    pre = reader.text("pre")
    if pre not in _PIPELINES:
        raise TokenizerError(
            f"pre-tokenizer {pre!r} is not supported", where=where, hint="supported: " + ", ".join(_PIPELINES)
        )
    tokens = reader.strings("tokens")
    kinds = reader.token_types(len(tokens))
    special = {_CONTROL, _UNKNOWN}
    added = {
        i: AddedToken(tokens[i], special=kind in special, normalized=False)
        for i, kind in enumerate(kinds)
        if kind in special or kind == _USER_DEFINED
    }
    vocab = {tokens[i]: i for i, kind in enumerate(kinds) if kind in (_NORMAL, _BYTE)}
    if not vocab:
        raise TokenizerError("tokenizer.ggml.tokens has no ordinary token", where=where)
    if len(vocab) + len(added) < sum(kind != _UNUSED for kind in kinds):
        raise TokenizerError("tokenizer.ggml.tokens has the same token twice", where=where)
    named = {name: reader.token_id(key, len(tokens)) for name, key in _NAMED.items()}
    return TokenizerParts(
        plain=_PIPELINES[pre](_bpe(vocab, reader.merges(), ignore_merges=pre == "llama-bpe", where=where)),
        added=added,
        bos_token_id=named["bos_token"],
        eos_token_ids=_ends([named["eos_token"], reader.token_id("eot", len(tokens))], added),
        add_bos=reader.flag("add_bos_token", default=pre == "llama-bpe"),
        named_tokens={name: tokens[i] for name, i in named.items() if i is not None},
        chat_templates=reader.chat_templates(),
    )


def _ends(told: list[int | None], added: dict[int, AddedToken]) -> tuple[int, ...]:
    known = [i for i, token in added.items() if token.special and token.content in _END_OF_TEXT]
    return tuple(dict.fromkeys(i for i in [*told, *known] if i is not None))


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], *, ignore_merges: bool, where: str) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"the merges do not fit the vocabulary: {error!s:.200}", where=where) from error


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _qwen2(model: models.BPE) -> Pipeline:
    pipeline = Pipeline(model)
    pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = _split(_QWEN2)
    return pipeline


def _llama_bpe(model: models.BPE) -> Pipeline:
    pipeline = Pipeline(model)
    pipeline.pre_tokenizer = _split(_LLAMA3)
    return pipeline


def _smollm(model: models.BPE) -> Pipeline:
    pipeline = Pipeline(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return pipeline


def _gpt2(model: models.BPE) -> Pipeline:
    pipeline = Pipeline(model)
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pipeline


_PIPELINES = {"qwen2": _qwen2, "llama-bpe": _llama_bpe, "smollm": _smollm, "gpt-2": _gpt2}


class _Reader:
    """Typed access to the `tokenizer.ggml.*` keys; every value is checked before it is used."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self._where = where

    def _error(self, name: str, problem: str) -> TokenizerError:
        return TokenizerError(f"tokenizer.ggml.{name} {problem}", where=self._where)

    def _get(self, name: str) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            hint = "convert the model again: old files do not say how their text is cut into words"
            raise TokenizerError(f"tokenizer.ggml.{name} is missing", where=self._where, hint=hint)
        return value

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise self._error(name, "is not text")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise self._error(name, "is not true or false")
        return value

    def strings(self, name: str) -> list[str]:
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(name, "is not a list of texts")
        return value

    def token_types(self, count: int) -> list[int]:
        value = self._get("token_type")
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._error("token_type", "is not a list of whole numbers")
        if len(value) != count:
            raise self._error("token_type", f"has {len(value)} entries for {count} tokens")
        kinds: list[int] = value.tolist()
        if not set(kinds) <= set(_TOKEN_TYPES):
            raise self._error("token_type", "has values other than 1 … 6")
        return kinds

    def chat_templates(self) -> dict[str, str]:
        value = self._metadata.get("tokenizer.chat_template")
        if value is not None and not isinstance(value, str):
            raise TokenizerError("tokenizer.chat_template is not text", where=self._where)
        return {} if value is None else {"default": value}

    def merges(self) -> list[tuple[str, str]]:
        pairs = [merge.split(" ") for merge in self.strings("merges")]
        for pair in pairs:
            if len(pair) != 2 or not all(pair):
                raise self._error("merges", f"has an entry that is not two tokens: {' '.join(pair)!r:.60}")
        return [(left, right) for left, right in pairs]

    def token_id(self, name: str, count: int) -> int | None:
        key = f"{name}_token_id"
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise self._error(key, f"= {value!r:.60} is not the id of a token")
        return value
