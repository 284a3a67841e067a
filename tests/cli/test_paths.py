"""The user's folders."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from qwill.cli.paths import check_may_write, config_files, make_folder, state_folder
from qwill.errors import UsageError


def test_the_local_file_goes_before_the_user_s(home: Path) -> None:
    assert config_files({}) == [Path("qwill.toml"), home / ".config/qwill/config.toml"]
    assert config_files({"XDG_CONFIG_HOME": "/etc/x"})[1] == Path("/etc/x/qwill/config.toml")


@pytest.mark.parametrize("relative", ["", "state", "./x"])
def test_a_relative_xdg_folder_is_passed_over_as_its_specification_asks(home: Path, relative: str) -> None:
    assert state_folder({"XDG_STATE_HOME": relative}) == home / ".local/state/qwill"


def test_the_state_folder_is_made_for_the_user_alone_when_it_is_needed(home: Path) -> None:
    assert not state_folder({}).exists()
    assert stat.S_IMODE(make_folder(state_folder({})).stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        make_folder(tmp_path / "file" / "below")


def test_files_that_can_be_written_are_fine_with_folders_that_are_yet_to_be_made(home: Path) -> None:
    check_may_write("a.json", None, "new/folder/b.json", "")


@pytest.mark.parametrize("name", [".", "file/below.json", "a" * 256, "new/" + "a" * 300, "a\0b", "pipe", "to a pipe"])
def test_a_file_that_cannot_be_written_is_refused_by_its_name(home: Path, name: str) -> None:
    (home / "file").write_text("")
    os.mkfifo(home / "pipe")
    (home / "to a pipe").symlink_to("pipe")
    with pytest.raises(UsageError, match="cannot write") as caught:
        check_may_write("fine.json", name)
    assert f"{name!r:.100}" in caught.value.what
