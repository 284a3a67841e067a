"""Room, locks, and names that appear only when what they name is whole."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import DiskSpaceError, DownloadError, SettingError
from qwill.hub.storage import cache_root, check_space, disk_errors, locked, publish


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QWILL_HOME", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("QWILL_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "qwill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "qwill"


@pytest.mark.parametrize("variable", ["QWILL_HOME", "XDG_CACHE_HOME"])
def test_the_home_of_nobody_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("QWILL_HOME", raising=False)
    monkeypatch.setenv(variable, "~no-such-user/x")
    with pytest.raises(SettingError, match=f"{variable}: there is no home folder for '~no-such-user/x'"):
        cache_root()


def test_room_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet", 1)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(DiskSpaceError, match=r"needs .* only .* are free") as error:
        check_space(tmp_path / "not" / "yet", free * 2)
    assert error.value.where == str(tmp_path / "not" / "yet")
    assert "HF_HOME" in error.value.hint


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, DiskSpaceError, "goes on where it stopped"),
        (errno.EDQUOT, DiskSpaceError, "full"),
        (errno.EFBIG, DiskSpaceError, "full"),
        (errno.EACCES, DownloadError, "QWILL_HOME"),
        (errno.EROFS, DownloadError, "cannot write"),
        (errno.ENOTDIR, DownloadError, "a file stands where a folder is needed"),
        (errno.EEXIST, DownloadError, "File exists"),
        (errno.EISDIR, DownloadError, "Is a directory"),
        (errno.ENOENT, DownloadError, "QWILL_HOME"),
        (errno.EIO, OSError, "Input/output"),
    ],
)
def test_the_systems_refusals_are_typed(tmp_path: Path, number: int, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_full_device_is_noticed() -> None:
    with pytest.raises(DiskSpaceError), disk_errors(Path("/dev/full")), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def test_one_holder_at_a_time_and_the_other_is_told(tmp_path: Path, progress: Any) -> None:
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with locked(tmp_path / "locks" / "x.lock", progress):
            inside.set()
            assert leave.wait(10)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    threading.Timer(0.3, leave.set).start()
    with locked(tmp_path / "locks" / "x.lock", progress):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert progress.messages == ["waiting: another process is downloading the same file"]


def test_a_lock_is_free_after_an_error(tmp_path: Path, progress: Any) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "x.lock", progress):
        raise ZeroDivisionError
    with locked(tmp_path / "x.lock", progress):
        assert progress.messages == []


def test_publishing_replaces_in_one_step(tmp_path: Path) -> None:
    partial, final = tmp_path / "x.partial", tmp_path / "x"
    final.write_bytes(b"old")
    partial.write_bytes(b"new")
    publish(partial, final)
    assert final.read_bytes() == b"new"
    assert not partial.exists()
