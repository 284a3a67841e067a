"""The user's folders."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from qwill.cli.paths import config_files, state_folder


def test_the_local_file_goes_before_the_user_s(home: Path) -> None:
    assert config_files({}) == [Path("qwill.toml"), home / ".config/qwill/config.toml"]
    assert config_files({"XDG_CONFIG_HOME": "/etc/x"})[1] == Path("/etc/x/qwill/config.toml")


@pytest.mark.parametrize("relative", ["", "state", "./x"])
def test_a_relative_xdg_folder_is_passed_over_as_its_specification_asks(home: Path, relative: str) -> None:
    assert state_folder({"XDG_STATE_HOME": relative}) == home / ".local/state/qwill"


def test_the_state_folder_is_the_user_s_alone(home: Path) -> None:
    assert stat.S_IMODE(state_folder({}).stat().st_mode) == 0o700
