"""Text to token ids and back. The merging is done by the `tokenizers` library; the rules around it are ours.

The one rule that matters most: text is text. `encode` never looks for control tokens, so `<|im_end|>` typed by a
user becomes seven ordinary tokens; only `parse_special=True`, and the parts that a chat template wrote, may name them.
Knows nothing of chats and models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from qwill.detokenizer import Detokenizer, bytes_of_token
from qwill.errors import PromptError
from qwill.formats import open_checkpoint
from qwill.gguf_vocab import read_gguf_vocab
from qwill.tokenizer_files import TokenizerParts, read_tokenizer_folder

__all__ = ["Part", "Tokenizer"]

Part = str | int
"""A piece of a prompt: text without control tokens, or the id of one token."""


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

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of a text, without a beginning-of-text token.

        With `parse_special`, added tokens spelled in the text become their ids, as Hugging Face does.

        Raises:
            PromptError: when the text is not a string or holds half of a surrogate pair.
        """
        if not isinstance(text, str):
            raise PromptError(f"a prompt must be text, this is {type(text).__name__}")
        return self.encode_parts(self.split(text) if parse_special else [text])

    def split(self, text: str) -> list[Part]:
        """Cut a text at its added tokens; of several that match at one place the longest is taken."""
        parts: list[Part] = []
        end = 0
        for match in self._added_pattern.finditer(text):
            parts += [text[end : match.start()], self.special_tokens[match[match.lastindex or 0]]]
            end = match.end()
        return [part for part in [*parts, text[end:]] if part != ""]

    def encode_parts(self, parts: Sequence[Part]) -> list[int]:
        """Token ids of texts and ids in turn; texts are never searched for control tokens."""
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else self._encode_plain(part)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        try:
            return list(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (TypeError, UnicodeEncodeError) as error:
            surrogate = re.search("[\ud800-\udfff]", text)
            place = surrogate.start() if surrogate else 0
            raise PromptError(
                "the text holds half of a surrogate pair, which is not a character",
                where=f"character {place}",
                hint="decode the text with errors='replace' first",
            ) from error

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; a character may need several tokens.

        Raises:
            PromptError: when there is no such token.
        """
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
        stream = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join([*map(stream.push, ids), stream.finish()])

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        alternatives = []
        for token in sorted(self._added.values(), key=lambda token: len(token.content), reverse=True):
            word = (r"(?<!\w)", r"(?!\w)") if token.single_word else ("", "")
            left, right = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
            alternatives.append(f"{left}{word[0]}({re.escape(token.content)}){word[1]}{right}")
        return re.compile("|".join(alternatives) or r"(?!)")
