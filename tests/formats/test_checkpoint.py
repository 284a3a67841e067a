"""Checkpoint and MappedFile: read-only views, release, close, and files that are no files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from qwill.errors import FormatError, ModelNotFoundError, WeightsError
from qwill.formats import open_checkpoint
from qwill.formats.checkpoint import MappedFile

Write = Callable[..., Path]


def test_views_are_read_only_and_copy_nothing(header: dict[str, Any], write_safetensors: Write) -> None:
    with open_checkpoint(write_safetensors(header)) as checkpoint:
        view = checkpoint.raw("b.weight")
        assert view.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        assert not view.flags.owndata
        assert np.shares_memory(view, checkpoint.raw("b.weight"))


def test_view_outlives_the_checkpoint(header: dict[str, Any], write_safetensors: Write) -> None:
    with open_checkpoint(write_safetensors(header, bytes(range(40)))) as checkpoint:
        view = checkpoint.raw("b.weight")
    assert bytes(view) == bytes(range(12, 40))
    checkpoint.close()  # again
    with pytest.raises(FormatError, match="closed"):
        checkpoint.raw("b.weight")


def test_unknown_tensor_names_the_nearest(header: dict[str, Any], write_safetensors: Write) -> None:
    with open_checkpoint(write_safetensors(header)) as checkpoint, pytest.raises(WeightsError, match=r"b\.weight\?"):
        checkpoint.raw("b.weigth")


def test_released_pages_leave_memory_and_come_back(write_safetensors: Write) -> None:
    size = 2**26
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path = write_safetensors(header, b"\7" * size)
    with open_checkpoint(path) as checkpoint:
        view = checkpoint.raw("w")
        before = psutil.Process().memory_info().rss
        assert int(view[:: os.sysconf("SC_PAGESIZE")].sum()) == 7 * size // os.sysconf("SC_PAGESIZE")
        full = psutil.Process().memory_info().rss
        checkpoint.release("w")
        after = psutil.Process().memory_info().rss
        assert full - before > size * 0.9
        assert after - before < size * 0.1
        assert view[size - 1] == 7


def test_no_file_stays_open_after_a_refusal(gguf_file: Any, tmp_path: Path) -> None:
    gguf_file.version = 9
    path = gguf_file.write(tmp_path / "x.gguf")
    before = psutil.Process().num_fds()
    for _ in range(20):
        with pytest.raises(Exception, match="version 9"):
            open_checkpoint(path)
    assert psutil.Process().num_fds() == before
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_only_regular_files_are_mapped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(FormatError, match="not a regular file"):
            MappedFile(path)
    with pytest.raises(ModelNotFoundError):
        MappedFile(tmp_path / "gone")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(FormatError, match="cannot be opened"):
        MappedFile(path)
