"""A small corpus of our own for the scripts of the tiny model."""

from __future__ import annotations

import random

import pytest

from scripts.tiny_corpus import Document

WORDS = [
    "the",
    "king",
    "and",
    "queen",
    "went",
    "to",
    "old",
    "house",
    "of",
    "night",
    "no",
    "man",
    "speaks",
    "but",
    "wind",
]


def lines(seed: int, count: int, ends: str) -> str:
    """Lines of eight words each."""
    chosen = random.Random(seed)
    return "\n".join(" ".join(chosen.choices(WORDS, k=8)).capitalize() + ends for _ in range(count))


@pytest.fixture(scope="session")
def texts() -> list[Document]:
    """Something of every kind; what is held out has the names that are held out of the real corpus."""
    poem = "春风吹又生，明月照高楼。\n江水向东流，白云千里愁。\n夜来风雨声，花落知多少。"
    english = [
        Document("play", "lear", "KING.\n" + lines(1, 80, ".")),
        Document("play", "hamlet", "HAMLET.\n" + lines(2, 40, ".")),
        Document("poem", "sonnets", lines(3, 40, ",") + "."),
        Document("bible", "Ge", lines(4, 80, ".")),
    ]
    return [*english, *(Document("chinese", f"《{n}》", f"《{n}》\n李白\n{poem}") for n in range(30))]
