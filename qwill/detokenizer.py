"""Token ids back to text, one at a time: byte-level tokens, incremental UTF-8.

A byte-level token is a run of bytes, not of characters: 世 can arrive as two tokens, neither of which is text.
So bytes go through an incremental UTF-8 decoder, which holds back an unfinished character and turns bytes that
can never become one into U+FFFD (Unicode 15, section 3.9, "maximal subpart"). What was given out is never revised.
Knows nothing of how text becomes tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container

__all__ = ["Detokenizer", "byte_level", "bytes_of_token"]


def _byte_level_table() -> dict[str, int]:
    """GPT-2's table (Radford et al. 2019): the printable character that stands for each of the 256 bytes.

    A byte that is a printable character of Latin-1 stands for itself; the others take the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_level_table()
_CHARACTER_OF = {byte: character for character, byte in _BYTE_OF.items()}


def byte_level(text: str) -> str:
    """The text's bytes, each as its printable character: how a byte-level vocabulary spells it."""
    return "".join(_CHARACTER_OF[byte] for byte in text.encode("utf-8", "replace"))


def bytes_of_token(token: str) -> bytes:
    """The bytes of a byte-level token; a token with a character outside the table is plain text itself."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


class Detokenizer:
    """Turns a stream of token ids into a stream of text; one for each answer that is being written.

    The joined results of `push` and the final `finish` are the text of all ids together, however they were split.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Container[int]) -> None:
        """`token_bytes` gives an id's bytes; ids in `skip` give no text."""
        self._token_bytes = token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished.

        Raises:
            PromptError: when the tokenizer has no such id.
        """
        data = self._token_bytes(token_id)
        return "" if token_id in self._skip else self._decoder.decode(data)

    def finish(self) -> str:
        """The rest: U+FFFD where the last character was left unfinished."""
        return self._decoder.decode(b"", final=True)
