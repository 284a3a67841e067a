"""A file is plain UTF-8 text, or refused with the place where it is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qwill.errors import UsageError
from qwill.eval import texts


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    data = "first\r\n春眠不覚暁\n".encode()
    (tmp_path / "poem.txt").write_bytes(data)
    found = texts.read_text(tmp_path / "poem.txt")
    assert found == texts.EvalText("poem.txt", hashlib.sha256(data).hexdigest(), data.decode())


@pytest.mark.parametrize(
    ("data", "what", "where"),
    [
        (b"", "is empty", ""),
        (b" \n\t\n", "is empty", ""),
        (b"text\0more", "binary", "byte 4"),
        ("é".encode("latin-1"), "not UTF-8", "byte 0"),
        (b"abc\xe2\x82", "not UTF-8", "byte 3"),
        ("text".encode("utf-16"), "binary", "byte 3"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place_and_a_hint(
    tmp_path: Path, data: bytes, what: str, where: str
) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(UsageError, match=what) as caught:
        texts.read_text(tmp_path / "file")
    assert "file" in caught.value.where
    assert where in caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize("name", ["gone.txt", "", "a\0b", "x" * 300])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        texts.read_text(tmp_path / name)
    assert caught.value.hint


def test_a_text_that_is_too_large_is_refused_before_it_is_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_BYTES", 1 << 20)
    (tmp_path / "large").write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(UsageError, match="more than 1 MiB"):
        texts.read_text(tmp_path / "large")
