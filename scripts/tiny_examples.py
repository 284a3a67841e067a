"""From texts to what the tiny model is shown: its tokenizer, its chat template, and windows of tokens to learn from.

Most windows are plain text, with <|endoftext|> between documents. The others are chats in which the user gives a few
lines and the assistant goes on with the ones that follow: so the model learns the turns of a chat, to think or not to
think, and to stop. Knows nothing of models and files.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from scripts.tiny_corpus import Document

__all__ = ["CHAT_TEMPLATE", "SPECIAL_TOKENS", "Examples", "chat_text", "held_out", "train_tokenizer"]

Ids = npt.NDArray[np.int64]

END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"
SPECIAL_TOKENS = {END_OF_TEXT: True, IM_START: True, IM_END: True, THINK: False, END_THINK: False}
"""Added token -> is it a control token, which decoding leaves out? As in Qwen3."""

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NO_THINKING = f"{THINK}\n\n{END_THINK}\n\n"
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""
"""ChatML as Qwen3 writes it, without tools: earlier answers lose their thinking."""

THOUGHTS = {
    "play": "These are lines of a play. I go on in the same manner.",
    "poem": "These are lines of a poem. I go on in verse.",
    "bible": "These are words of the Bible. I go on in the same manner.",
    "chinese": "这是一首诗，我接着写。",
}
SYSTEM = {
    "play": "You write plays.",
    "poem": "You write poems.",
    "bible": "You write scripture.",
    "chinese": "你写诗。",
}
"""Kind of document -> what the assistant thinks of it, and the system message of some chats."""

REPEATS = {"chinese": 8}
"""Kinds of documents of which there is so little that they are shown more than once."""
HELD_OUT_NAMES = frozenset({"hamlet", "Ruth", "phoenix_and_the_turtle"})
HELD_OUT_POEM = 20  # one Chinese poem of so many
NOT_LEARNED = -100  # the label of a position that has no part in the loss, as torch's cross_entropy has it


def train_tokenizer(documents: Sequence[Document], vocab_size: int) -> Tokenizer:
    """A byte-level BPE with Qwen's rule for words; the added tokens take the last ids of `vocab_size`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents for _ in range(REPEATS.get(d.kind, 1))), trainer)
    for text, special in SPECIAL_TOKENS.items():
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    return tokenizer


def held_out(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """The documents to learn from, and those to test on, which are never learned from."""
    poems = [d for d in documents if d.kind == "chinese"][::HELD_OUT_POEM]
    kept = {d.name for d in poems} | HELD_OUT_NAMES
    return [d for d in documents if d.name not in kept], [d for d in documents if d.name in kept]


@dataclass(frozen=True)
class Passage:
    """What a user gives, and how the text goes on."""

    kind: str
    given: str
    following: str


def passage(document: Document, random_: random.Random) -> Passage | None:
    """A passage at a random place of a document; None where the document does not go on for long enough there."""
    pieces, between = _pieces(document)
    least, most = (20, 80) if document.kind == "chinese" else (60, 200)
    start = random_.randrange(len(pieces))
    end = start + random_.randint(1, 2)
    given = between.join(pieces[start:end]).strip()
    following = ""
    for piece in pieces[end:]:
        if len(following) + len(piece) > most:
            break
        following += between * bool(following) + piece
        if len(following) >= least and re.search(r"[.?!。？！]\W*$", piece):
            break
    return Passage(document.kind, given, following.strip()) if given and len(following.strip()) >= least else None


@cache
def _pieces(document: Document) -> tuple[list[str], str]:
    """The lines of a document, or the clauses of one whose lines are long, and what stands between them."""
    if document.kind == "bible":
        return re.split(r"(?<=[,:;.?!]) |\n+", document.text), " "
    return document.text.split("\n"), "\n"


def chat_text(turns: Sequence[Passage], *, system: bool, thinking: bool) -> str:
    """A chat as the template writes it, with the answer to its last message.

    With `thinking` that answer begins with a thought; without, with the empty one that the template puts there.
    """
    parts = [f"{IM_START}system\n{SYSTEM[turns[0].kind]}{IM_END}\n"] if system else []
    for number, turn in enumerate(turns, start=1):
        parts.append(f"{IM_START}user\n{turn.given}{IM_END}\n{IM_START}assistant\n")
        if number == len(turns):
            parts.append(f"{THINK}\n{THOUGHTS[turn.kind]}\n{END_THINK}\n\n" if thinking else NO_THINKING)
        parts.append(f"{turn.following}{IM_END}\n")
    return "".join(parts)


@dataclass(frozen=True)
class Examples:
    """The windows of each training step. A step's windows depend on its number and the seed only."""

    documents: Sequence[Document]
    tokenizer: Tokenizer
    seed: int
    chats: float
    """Share of the windows that hold chats."""

    @cached_property
    def stream(self) -> Ids:
        """All documents, one after another, <|endoftext|> after each."""
        texts = [d.text + END_OF_TEXT for d in self.documents for _ in range(REPEATS.get(d.kind, 1))]
        random.Random(self.seed).shuffle(texts)
        return np.concatenate([np.array(e.ids, np.int64) for e in self.tokenizer.encode_batch(texts)])

    @cached_property
    def _weights(self) -> list[int]:
        return [len(d.text) * REPEATS.get(d.kind, 1) * (3 if d.kind == "chinese" else 1) for d in self.documents]

    def windows(self, step: int, count: int, length: int) -> tuple[Ids, Ids]:
        """(inputs, labels), both (count, length): the label of a token is the token after it, or NOT_LEARNED."""
        random_ = random.Random(f"{self.seed}/{step}")
        rows = [
            self._chats(random_, length) if random_.random() < self.chats else self._text(random_, length)
            for _ in range(count)
        ]
        return np.stack([ids for ids, _ in rows]), np.stack([labels for _, labels in rows])

    def _text(self, random_: random.Random, length: int) -> tuple[Ids, Ids]:
        start = random_.randrange(len(self.stream) - length)
        ids = self.stream[start : start + length + 1]
        return ids[:-1], ids[1:]

    def _chats(self, random_: random.Random, length: int) -> tuple[Ids, Ids]:
        """Chats until the window is full; the last one is cut off."""
        ids: list[int] = []
        given: list[int] = []  # positions that the template writes: nobody need predict them
        skipped = [self.tokenizer.token_to_id(THINK), *self.tokenizer.encode("\n\n").ids]
        skipped += [self.tokenizer.token_to_id(END_THINK), *self.tokenizer.encode("\n\n").ids]
        while len(ids) <= length:
            text = self.chat(random_)
            new = self.tokenizer.encode(text + END_OF_TEXT).ids
            for at in range(len(new) - len(skipped)):
                if new[at : at + len(skipped)] == skipped:
                    given += range(len(ids) + at, len(ids) + at + len(skipped))
            ids += new
        whole = np.array(ids[: length + 1], np.int64)
        labels = whole.copy()
        labels[[at for at in given if at < len(labels)]] = NOT_LEARNED
        return whole[:-1], labels[1:]

    def chat(self, random_: random.Random) -> str:
        """One chat, of one or two turns about one kind of text."""
        turns: list[Passage] = []
        wanted = 2 if random_.random() < 0.2 else 1
        document = random_.choices(self.documents, self._weights)[0]
        while len(turns) < wanted:
            found = passage(document, random_)
            if found:
                turns.append(found)
            elif random_.random() < 0.2:  # a document may be too short for any passage
                document, turns = random_.choices(self.documents, self._weights)[0], []
        return chat_text(turns, system=random_.random() < 0.15, thinking=random_.random() < 0.5)
