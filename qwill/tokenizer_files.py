"""A tokenizer out of a model's folder: tokenizer.json, and what its neighbours say about it.

    tokenizer.json            vocabulary, merges, normalizer, pre-tokenizer, added tokens
    tokenizer_config.json     names of the control tokens, more added tokens, perhaps the chat template
    chat_template.jinja       the chat template of newer folders
    generation_config.json    more tokens that end an answer
    config.json               the same

Only reads and checks. Knows nothing of encoding and of chats.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Pipeline

from qwill.detokenizer import byte_level
from qwill.errors import TokenizerError

__all__ = ["TokenizerParts", "read_tokenizer_folder"]

SUPPORTED = "supported: byte-level BPE, the kind of Qwen, Llama 3 and SmolLM2"


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer is made of; the readers of both kinds of files return this."""

    plain: Pipeline
    """Encodes text without looking for added tokens."""
    added: dict[int, AddedToken]
    """Every added token, control token or not, by its id."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    named_tokens: dict[str, str]
    """bos_token, eos_token, … -> text, as chat templates expect them."""
    chat_templates: dict[str, str]
    """Name -> source; the usual one is called "default"."""


def read_tokenizer_folder(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a folder.

    Raises:
        TokenizerError: when a file is missing, malformed, contradicts another, or is of a kind that is not supported.
    """
    full = _pipeline(folder / "tokenizer.json")
    config = _json_object(folder / "tokenizer_config.json")
    where = str(folder / "tokenizer_config.json")
    added = _added_tokens(full, config, where)
    named = _named_tokens(config)
    ids = {token.content: token_id for token_id, token in added.items()}
    for name, text in named.items():
        if text not in ids and full.token_to_id(text) is None:
            raise TokenizerError(f"{name} = {text!r:.60} is not a token of tokenizer.json", where=where)
    _check_control(full.model, added, where)
    bos = _id_of(named.get("bos_token"), ids, full)
    plain = Pipeline(full.model)
    plain.normalizer = full.normalizer
    plain.pre_tokenizer = full.pre_tokenizer
    return TokenizerParts(
        plain=plain,
        added=added,
        bos_token_id=bos,
        eos_token_ids=_ends(folder, _id_of(named.get("eos_token"), ids, full)),
        add_bos=_adds_bos(full, config, bos, where),
        named_tokens=named,
        chat_templates=_chat_templates(folder, config),
    )


def _pipeline(path: Path) -> Pipeline:
    if not path.is_file():
        raise TokenizerError(
            "there is no tokenizer.json", where=str(path.parent), hint="fetch the model again, with its tokenizer.json"
        )
    try:
        pipeline = Pipeline.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"tokenizer.json cannot be read: {error!s:.200}", where=str(path)) from error
    model, decoder = pipeline.model, pipeline.decoder
    if not isinstance(model, models.BPE):
        raise TokenizerError(
            f"a tokenizer of the kind {type(model).__name__} is not supported", where=str(path), hint=SUPPORTED
        )
    if not isinstance(decoder, decoders.ByteLevel):
        kind = "none" if decoder is None else type(decoder).__name__
        raise TokenizerError(f"a decoder of the kind {kind} is not supported", where=str(path), hint=SUPPORTED)
    if model.continuing_subword_prefix or model.end_of_word_suffix or model.byte_fallback:
        raise TokenizerError("marked or byte-fallback tokens are not supported", where=str(path), hint=SUPPORTED)
    return pipeline


def _json_object(path: Path) -> dict[str, Any]:
    """A neighbour file's content; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"not a JSON file: {error!s:.200}", where=str(path)) from error
    if not isinstance(value, dict):
        raise TokenizerError("not a JSON object", where=str(path))
    return value


def _added_tokens(full: Pipeline, config: dict[str, Any], where: str) -> dict[int, AddedToken]:
    added: dict[int, AddedToken] = dict(full.get_added_tokens_decoder())
    ids = {token.content: token_id for token_id, token in added.items()}
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict):
        raise TokenizerError("added_tokens_decoder is not a JSON object", where=where)
    for key, about in listed.items():
        content = about.get("content") if isinstance(about, dict) else None
        if not key.isdecimal() or len(key) > 9 or not isinstance(content, str) or not content:
            raise TokenizerError(f"added_tokens_decoder[{key!r:.60}] is malformed", where=where)
        if (int(key) in added and added[int(key)].content != content) or ids.get(content, int(key)) != int(key):
            raise TokenizerError(
                f"the added token {content!r:.60} is not the one that tokenizer.json gives the id {key}", where=where
            )
        if int(key) not in added:
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            added[int(key)] = AddedToken(content, **{flag: about.get(flag) is True for flag in flags})
    return added


def _check_control(model: Any, added: dict[int, AddedToken], where: str) -> None:
    """Ordinary text must not be able to spell a control token: no merges may lead to it."""
    for token_id, token in added.items():
        spelled = model.tokenize(byte_level(token.content)) if token.special else []
        if [piece.id for piece in spelled] == [token_id]:
            raise TokenizerError(f"the merges spell the control token {token.content!r:.60}", where=where)


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _id_of(text: str | None, ids: dict[str, int], full: Pipeline) -> int | None:
    return None if text is None else ids.get(text, full.token_to_id(text))


def _ends(folder: Path, eos: int | None) -> tuple[int, ...]:
    """Every token that ends an answer, from all files; the tokenizer's own first."""
    ends = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        value = _json_object(folder / name).get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in found:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
                raise TokenizerError(f"eos_token_id holds {token_id!r:.60}", where=str(folder / name))
        ends += found
    return tuple(dict.fromkeys(ends))


def _adds_bos(full: Pipeline, config: dict[str, Any], bos: int | None, where: str) -> bool:
    """Whether the tokenizer puts its beginning-of-text token before a plain prompt."""
    prefix = full.encode("").ids
    if prefix not in ([], [bos]):
        raise TokenizerError(f"the tokenizer adds the tokens {prefix} to every text, which is not supported")
    told = config.get("add_bos_token")
    if told is True and bos is None:
        raise TokenizerError("add_bos_token is true, but there is no bos_token", where=where)
    return told if isinstance(told, bool) else bool(prefix)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return {"default": path.read_bytes().decode("utf-8")}
        except UnicodeDecodeError as error:
            raise TokenizerError("the chat template is not UTF-8", where=str(path)) from error
    value = config.get("chat_template")
    if value is None:
        return {}
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
    templates = {}
    for entry in entries:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            raise TokenizerError("chat_template is malformed", where=str(folder / "tokenizer_config.json"))
        templates[name] = source
    return templates
