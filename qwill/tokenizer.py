"""Text to token ids and back. The merging is done by the `tokenizers` library; the rules around it are ours.

The one rule that matters most: text is text. `encode` never looks for control tokens, so `<|im_end|>` typed by a
user becomes six ordinary tokens; only `parse_special=True`, and the parts that a chat template wrote, may name them.
Knows nothing of chats and models.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

from tokenizers.normalizers import NFC

from qwill.detokenizer import Detokenizer, bytes_of_token
from qwill.errors import ContextLengthError, PromptError, TokenizerError
from qwill.formats import open_checkpoint
from qwill.gguf_vocab import read_gguf_vocab
from qwill.tokenizer_files import TokenizerParts, call_library, read_tokenizer_folder

__all__ = ["Part", "Tokenizer"]

Part = str | int
"""A piece of a prompt: text without control tokens, or the id of one token."""

_PIECE_CHARACTERS = 1 << 16
_LINE_START = re.compile(r"(?<=\S\n)[A-Za-z]")


class Tokenizer:
    """A model's tokenizer: `load` it, `encode` text, `decode` ids, or take a `detokenizer` for a stream of ids.

    `eos_token_ids` is the union of every end the tokenizer's folder or file names. `add_bos` says that the model
    expects `bos_token_id` before a plain prompt; `encode` does not add it. `named_tokens` maps bos_token, eos_token, …
    to their text. `special_tokens` maps every added token's text to its id, control token or not (`<think>`).
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._plain = parts.plain
        self._added = parts.added
        self.special_tokens = {token.content: token_id for token_id, token in parts.added.items()}
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.add_bos = parts.add_bos
        self.named_tokens = parts.named_tokens
        self.chat_templates = parts.chat_templates
        self._bytes: dict[int, bytes] = {}
        self._control = {token_id for token_id, token in parts.added.items() if token.special}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a folder (tokenizer.json and its neighbours) or a .gguf file.

        Raises:
            TokenizerError: when files are missing, contradict each other, or are of a kind that is not supported.
        """
        if path.is_dir():
            return cls(read_tokenizer_folder(path))
        with open_checkpoint(path) as checkpoint:
            return cls(read_gguf_vocab(checkpoint.metadata, str(path)))

    @property
    def chat_template(self) -> str | None:
        """The chat template's source; None for a base model."""
        return self.chat_templates.get("default")

    @cached_property
    def vocab_size(self) -> int:
        """Highest id of a real token, plus one. A model's own vocabulary may be larger: such ids mean nothing."""
        size = self._plain.get_vocab_size(with_added_tokens=False)
        if not all(map(self._plain.id_to_token, range(size))):
            size = max(self._plain.get_vocab(with_added_tokens=False).values()) + 1
        return max(size, *(token_id + 1 for token_id in self.special_tokens.values()), 0)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token, spelled as in the tokenizer's file, and its id; made anew at each call."""
        return {**self._plain.get_vocab(with_added_tokens=False), **self.special_tokens}

    def encode(self, text: str, *, parse_special: bool = False, most: int | None = None) -> list[int]:
        """Token ids of a text, without a beginning-of-text token.

        With `parse_special`, added tokens spelled in the text become their ids, as Hugging Face does. With `most`, a
        text of more tokens is refused as soon as that is known, often before all of it is encoded.

        Raises:
            PromptError: when the text is not a string, holds half of a surrogate pair, or the library fails on it.
            ContextLengthError: it has more than `most` tokens.
        """
        if not isinstance(text, str):
            raise PromptError(f"a prompt must be text, this is {type(text).__name__}")
        if most is not None and len(text) > 8 * most and len(text) > self._most_characters * most:
            raise _too_long(most)
        return self.encode_parts(self.split(text) if parse_special else [text], most=most)

    def split(self, text: str) -> list[Part]:
        """Cut a text at its added tokens; of several that match at one place the longest is taken."""
        parts: list[Part] = []
        end = 0
        for match in self._added_pattern.finditer(text):
            if match.start() < end:
                continue
            token_id = self.special_tokens[match[0]]
            before = text[end : match.start()]
            parts += [before.rstrip() if self._added[token_id].lstrip else before, token_id]
            end = match.end()
            while self._added[token_id].rstrip and text[end : end + 1].isspace():
                end += 1
        return [part for part in [*parts, text[end:]] if part != ""]

    def encode_parts(self, parts: Sequence[Part], *, most: int | None = None) -> list[int]:
        """Token ids of texts and ids in turn; texts are never searched for control tokens. For `most`, see `encode`."""
        ids: list[int] = []
        for part in parts:
            for some in [[part]] if isinstance(part, int) else self._encode_plain(part):
                ids += some
                if most is not None and len(ids) > most:
                    raise _too_long(most)
        return ids

    def _encode_plain(self, text: str) -> Iterator[list[int]]:
        try:
            for piece in self._pieces(text):
                yield call_library(self._plain.encode, piece, add_special_tokens=False).ids
        except TokenizerError as error:
            surrogate = re.search("[\ud800-\udfff]", text)
            if surrogate is None:
                raise PromptError(f"the text cannot be encoded: {error.what}") from error
            raise PromptError(
                "the text holds half of a surrogate pair, which is not a character",
                where=f"character {surrogate.start()}",
                hint="decode the text with errors='replace' first",
            ) from error

    @cached_property
    def _most_characters(self) -> int:
        """Most characters of a text that one token can stand for; normalizing may make one of three of them."""
        return 3 * max(map(len, self.vocabulary))

    def _pieces(self, text: str) -> Iterator[str]:
        """The text, a long one cut where no token can cross: the library needs 150 bytes of memory per character."""
        start = 0
        while len(text) - start > _PIECE_CHARACTERS and self._lines_are_apart:
            cut = _LINE_START.search(text, start + _PIECE_CHARACTERS)
            if cut is None:
                break
            yield text[start : cut.start()]
            start = cut.start()
        yield text[start:]

    @cached_property
    def _lines_are_apart(self) -> bool:
        """Whether the pre-tokenizer begins a new word where `_LINE_START` matches, whatever comes before."""
        if not isinstance(self._plain.normalizer, (NFC, type(None))) or self._plain.pre_tokenizer is None:
            return False
        words = partial(call_library, self._plain.pre_tokenizer.pre_tokenize_str)
        spelled = [
            ([word for word, _ in words(a + "B")], words(a)) for a in ("a\n", " B\n", "1\n", ".\n", "。\n", "é\n")
        ]
        return all(whole == [*(word for word, _ in alone), "B"] for whole, alone in spelled)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; a character may need several tokens.

        Raises:
            PromptError: when there is no such token.
        """
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._look_up(token_id)
        return data

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return str(self._added[token_id].content).encode("utf-8")
        token = self._plain.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            raise PromptError(f"there is no token with the id {token_id}", hint=f"allowed: 0 … {self.vocab_size - 1}")
        return bytes_of_token(token)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental decoder; with `skip_special_tokens`, control tokens give no text."""
        return Detokenizer(self.token_bytes, self._control if skip_special_tokens else ())

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            PromptError: when there is no such token.
        """
        skip: Container[int] = self._control if skip_special_tokens else ()
        return b"".join([self.token_bytes(i) for i in ids if i not in skip]).decode("utf-8", "replace")

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._added.values(), key=lambda token: len(token.content), reverse=True)
        words = [(r"(?<!\w)", r"(?!\w)") if token.single_word else ("", "") for token in longest_first]
        pairs = zip(longest_first, words, strict=True)
        return re.compile("|".join(a + re.escape(token.content) + b for token, (a, b) in pairs) or r"(?!)")


def _too_long(most: int) -> ContextLengthError:
    return ContextLengthError(
        f"the prompt has more than {most} tokens; the context does not hold so many",
        hint="shorten the prompt or raise max_model_len",
    )
