"""A file is whole or not there, and takes the place of nothing but a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from qwill.whole_file import whole_file


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file.txt"
    with whole_file(target) as temporary:
        temporary.write_text("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"
    assert os.listdir(target.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_was_there_stays_when_writing_fails(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "file.txt"
    target.write_text("before")
    with pytest.raises(error), whole_file(target) as temporary:
        _write_half(temporary, error)
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_pipe_and_a_folder_are_not_replaced(tmp_path: Path) -> None:
    # As root, `-o /dev/null` would else make an ordinary file of the device.
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="no file"), whole_file(tmp_path / name) as temporary:
            temporary.write_text("x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_a_link_stays_a_link_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file.txt")
    for text in ("new", "newer"):
        with whole_file(tmp_path / "link") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file.txt").read_text() == text


def test_the_longest_name_can_be_written_and_longer_ones_are_an_os_error(tmp_path: Path) -> None:
    with whole_file(tmp_path / ("a" * 255)) as temporary:
        temporary.write_text("x")
    for name in ("a" * 256, "a\0b"):
        with pytest.raises(OSError), whole_file(tmp_path / name) as temporary:  # noqa: PT011 - the system's own words
            temporary.write_text("x")
    assert os.listdir(tmp_path) == ["a" * 255]


def test_the_file_may_be_read_by_whom_the_mask_allows(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file") as temporary:
            temporary.write_text("x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def _write_half(file: Path, error: type[BaseException]) -> None:
    file.write_text("half")
    raise error
