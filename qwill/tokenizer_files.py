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
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Pipeline

from qwill.detokenizer import byte_level
from qwill.errors import FormatError, TokenizerError
from qwill.formats.folder import allowed_file

__all__ = ["TokenizerParts", "call_library", "read_tokenizer_folder"]

_Result = TypeVar("_Result")

SUPPORTED = "supported: byte-level BPE, the kind of Qwen, Llama 3 and SmolLM2"

_MAX_BYTES = {
    "tokenizer.json": 64 << 20,
    "tokenizer_config.json": 16 << 20,
    "chat_template.jinja": 1 << 20,
    "generation_config.json": 16 << 20,
    "config.json": 16 << 20,
}
_STEPS = {
    "normalizer": (("NFC", "NFD", "NFKC", "NFKD"), "normalizers"),
    "pre_tokenizer": (("ByteLevel", "Split", "Digits"), "pretokenizers"),
}
"""Key of tokenizer.json -> the kinds that are supported, and where a Sequence keeps its parts."""


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
    full = _pipeline(folder)
    config = _json_object(folder, "tokenizer_config.json")
    where = str(folder / "tokenizer_config.json")
    added = _added_tokens(full, config, where)
    named = _named_tokens(config, where)
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


def _read(folder: Path, name: str) -> bytes | None:
    """A file's content; None when there is no such file."""
    try:
        path = allowed_file(folder, name)
    except FormatError as error:
        raise TokenizerError(error.what, where=error.where, hint=error.hint) from error
    if not path.is_file():
        return None
    limit = _MAX_BYTES[name]
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TokenizerError(f"{name} is larger than {limit >> 20} MiB", where=str(path))
    return data


def call_library(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Call the `tokenizers` library.

    Raises:
        TokenizerError: when it fails: it raises bare Exceptions and, when it panics, a BaseException.
    """
    try:
        return function(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"the tokenizers library failed: {error!s:.200}") from error


def _pipeline(folder: Path) -> Pipeline:
    where = str(folder / "tokenizer.json")
    data = _read(folder, "tokenizer.json")
    if data is None:
        raise TokenizerError(
            "there is no tokenizer.json", where=str(folder), hint="fetch the model again, with its tokenizer.json"
        )
    try:
        _check_steps(json.loads(data, object_pairs_hook=_without_repeats), where)
        pipeline = call_library(Pipeline.from_str, data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"tokenizer.json cannot be read: {error!s:.200}", where=where) from error
    except TokenizerError as error:
        if error.where:
            raise
        raise TokenizerError(f"tokenizer.json cannot be read: {error.what}", where=where) from error
    pipeline.no_padding()  # to a length of the file's choice
    pipeline.no_truncation()
    _check_kind(pipeline, where)
    return pipeline


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One JSON object: a repeated key could mean something else to the library than to the checks here."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _check_kind(pipeline: Pipeline, where: str) -> None:
    model, decoder = pipeline.model, pipeline.decoder
    if not isinstance(model, models.BPE):
        raise _unsupported("tokenizer", type(model).__name__, where)
    if not isinstance(decoder, decoders.ByteLevel):
        raise _unsupported("decoder", "none" if decoder is None else type(decoder).__name__, where)
    if model.continuing_subword_prefix or model.end_of_word_suffix or model.byte_fallback:
        raise TokenizerError("marked or byte-fallback tokens are not supported", where=where, hint=SUPPORTED)
    if model.dropout:
        raise TokenizerError("a dropout of merges is not supported: it makes tokens a matter of chance", where=where)
    if pipeline.get_vocab_size(with_added_tokens=False) == 0:
        raise TokenizerError("the vocabulary is empty", where=where)


def _check_steps(description: Any, where: str) -> None:
    """Only what byte-level BPE needs: others can fail badly, or take for ever, as early as when they are built."""
    if not isinstance(description, dict):
        raise ValueError("not a JSON object")
    model = description.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else "BPE"
    if kind in ("WordPiece", "Unigram", "WordLevel"):
        raise _unsupported("tokenizer", kind, where)
    for name, (kinds, inner) in _STEPS.items():
        steps = [description.get(name)]
        for step in steps:
            if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get(inner), list):
                steps += step[inner]
            elif step is not None and (not isinstance(step, dict) or step.get("type") not in kinds):
                found = step.get("type") if isinstance(step, dict) else step
                raise _unsupported(name, f"{found!s:.60}", where)


def _unsupported(what: str, kind: str, where: str) -> TokenizerError:
    return TokenizerError(f"a {what} of the kind {kind} is not supported", where=where, hint=SUPPORTED)


def _json_object(folder: Path, name: str) -> dict[str, Any]:
    """A neighbour file's content; empty when there is no such file."""
    data, where = _read(folder, name), str(folder / name)
    if data is None:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"not a JSON file: {error!s:.200}", where=where) from error
    if not isinstance(value, dict):
        raise TokenizerError("not a JSON object", where=where)
    return value


def _is_text(value: Any) -> bool:
    """Whether it is text without halves of surrogate pairs, which JSON can spell."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _added_tokens(full: Pipeline, config: dict[str, Any], where: str) -> dict[int, AddedToken]:
    added: dict[int, AddedToken] = dict(full.get_added_tokens_decoder())
    ids = {token.content: token_id for token_id, token in added.items()}
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict):
        raise TokenizerError("added_tokens_decoder is not a JSON object", where=where)
    for key, about in listed.items():
        content = about.get("content") if isinstance(about, dict) else None
        if not key.isdecimal() or len(key) > 9 or not content or not _is_text(content):
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
        spelled = call_library(model.tokenize, byte_level(token.content)) if token.special else []
        if [piece.id for piece in spelled] == [token_id]:
            raise TokenizerError(f"the merges spell the control token {token.content!r:.60}", where=where)


def _named_tokens(config: dict[str, Any], where: str) -> dict[str, str]:
    named = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            if not _is_text(text):
                raise TokenizerError(f"{name} holds half of a surrogate pair", where=where)
            named[name] = text
    return named


def _id_of(text: str | None, ids: dict[str, int], full: Pipeline) -> int | None:
    return None if text is None else ids.get(text, full.token_to_id(text))


def _ends(folder: Path, eos: int | None) -> tuple[int, ...]:
    """Every token that ends an answer, from all files; the tokenizer's own first."""
    ends = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        value = _json_object(folder, name).get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in found:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
                raise TokenizerError(f"eos_token_id holds {token_id!r:.60}", where=str(folder / name))
        ends += found
    return tuple(dict.fromkeys(ends))


def _adds_bos(full: Pipeline, config: dict[str, Any], bos: int | None, where: str) -> bool:
    """Whether the tokenizer puts its beginning-of-text token before a plain prompt."""
    prefix = call_library(full.encode, "").ids
    if prefix not in ([], [bos]):
        raise TokenizerError(f"the tokenizer adds the tokens {prefix} to every text, which is not supported")
    told = config.get("add_bos_token")
    if told is True and bos is None:
        raise TokenizerError("add_bos_token is true, but there is no bos_token", where=where)
    return told if isinstance(told, bool) else bool(prefix)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    data = _read(folder, "chat_template.jinja")
    if data is not None:
        try:
            return {"default": data.decode("utf-8")}
        except UnicodeDecodeError as error:
            raise TokenizerError("the chat template is not UTF-8", where=str(folder / "chat_template.jinja")) from error
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
