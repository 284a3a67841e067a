"""Set-up refuses a Python that cannot work, in words that help, and does nothing the second time."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import setup

INPUTS = ("pyproject.toml", "constraints.txt", "csrc/CMakeLists.txt", "csrc/kernels/linear.cpp")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose environment holds a stand-in for Python that writes down what it is asked to run."""
    for name in INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ntest "$2" != pip || exit $(cat {tmp_path}/pip_says)\n'
    )
    python.chmod(0o755)
    (tmp_path / "pip_says").write_text("0")
    return tmp_path


def installs(project: Path) -> list[str]:
    return [line for line in (project / "calls").read_text().splitlines() if line.startswith("-m pip install")]


def test_an_old_python_is_refused_with_the_way_out() -> None:
    with pytest.raises(setup.SetupError, match=r"3\.10, qwill needs 3\.11 or newer\nhint: .*PYTHON="):
        setup.refuse_unfit_python((3, 10))


def test_a_python_without_ensurepip_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find_spec(name))
    with pytest.raises(setup.SetupError, match="apt-get install python3-venv"):
        setup.refuse_unfit_python((3, 11))


def test_the_first_time_installs_what_is_pinned_and_the_second_time_nothing(project: Path) -> None:
    setup.set_up(project)
    setup.set_up(project)
    assert len(installs(project)) == 1
    assert "-c constraints.txt -e .[test]" in installs(project)[0]


@pytest.mark.parametrize("name", INPUTS)
def test_a_changed_input_installs_again(project: Path, name: str) -> None:
    setup.set_up(project)
    (project / name).write_text("changed")
    setup.set_up(project)
    assert len(installs(project)) == 2


def test_a_failed_install_is_tried_again_next_time(project: Path) -> None:
    (project / "pip_says").write_text("1")
    with pytest.raises(setup.SetupError, match="pip could not install"):
        setup.set_up(project)
    (project / "pip_says").write_text("0")
    setup.set_up(project)
    assert len(installs(project)) == 2


def test_an_environment_whose_python_is_gone_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(tmp_path / "removed")
    assert not setup.works(tmp_path)


def test_an_old_python_can_read_the_script_far_enough_to_be_refused() -> None:
    ast.parse(Path(setup.__file__).read_text(), feature_version=(3, 7))


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_help_names_every_target() -> None:
    # This test itself runs below `make test`, and a make that finds itself below another one says more.
    command = ["make", "--no-print-directory", "help"]
    text = subprocess.run(command, cwd=setup.ROOT, capture_output=True, text=True, check=True).stdout
    targets = [line.split()[1] for line in text.splitlines()]
    assert targets == ["help", "demo", "test", "check", "docs", "setup", "clean"]
