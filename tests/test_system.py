"""Cores and memory are what this process may use, not what the machine has. The oracle is psutil."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from qwill import system


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group without any limit."""
    monkeypatch.setattr(system, "CGROUP", tmp_path)
    return tmp_path


def cores_of_the_process() -> int:
    """As psutil counts them; macOS has no affinity."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_without_limits_all_cores_of_the_affinity_are_usable(cgroup: Path) -> None:
    assert system.usable_cores() == cores_of_the_process()


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("1 100000", 1)])
def test_a_quota_cuts_the_cores_and_leaves_at_least_one(cgroup: Path, quota: str, cores: int) -> None:
    write(cgroup, cpu_dot_max=quota)
    assert system.usable_cores() == cores


@pytest.mark.parametrize("quota", ["max 100000", "nonsense", "", "100000 0", "9999999999 100000"])
def test_a_quota_that_does_not_limit_changes_nothing(cgroup: Path, quota: str) -> None:
    write(cgroup, cpu_dot_max=quota)
    assert system.usable_cores() == cores_of_the_process()


def test_the_older_kind_of_control_group_is_read_too(cgroup: Path) -> None:
    write(cgroup, cpu__cpu_dot_cfs_quota_us="100000", cpu__cpu_dot_cfs_period_us="100000")
    assert system.usable_cores() == 1


def test_available_memory_is_the_systems(cgroup: Path) -> None:
    assert system.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_a_control_group_cuts_the_memory(cgroup: Path) -> None:
    write(cgroup, memory_dot_max="3000000", memory_dot_current="1000000")
    assert system.available_memory() == 2_000_000


def test_a_full_control_group_leaves_nothing(cgroup: Path) -> None:
    write(cgroup, memory_dot_max="1000", memory_dot_current="2000")
    assert system.available_memory() == 0


def test_a_control_group_without_a_limit_cuts_nothing(cgroup: Path) -> None:
    write(cgroup, memory_dot_max="max", memory_dot_current="1000000")
    assert system.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)
