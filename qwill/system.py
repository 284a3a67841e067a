"""What this process may use of the machine: cores and memory, as limited by affinity and control groups. Torch-free."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_memory", "usable_cores"]

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, cut by the control group's quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, min(cores, math.ceil(quota))) if quota else cores


def _cpu_quota() -> float | None:
    limit = _read(CGROUP / "cpu.max")  # version 2: "200000 100000" or "max 100000"
    if limit and len(limit.split()) == 2:
        quota, period = limit.split()
    else:
        quota = _read(CGROUP / "cpu/cpu.cfs_quota_us") or "-1"
        period = _read(CGROUP / "cpu/cpu.cfs_period_us") or "100000"
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def available_memory() -> int | None:
    """Bytes this process can still take without swapping: the system's, cut by the control group's; None if unknown."""
    known = [value for value in (_system_memory(), _cgroup_memory()) if value is not None]
    return min(known) if known else None


def _system_memory() -> int | None:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_memory() -> int | None:
    for limit, usage, details in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        most, used = _read(CGROUP / limit), _read(CGROUP / usage)
        if most and used and most.isdigit() and used.isdigit() and int(most) < 2**60:
            return max(0, int(most) - int(used) + _page_cache(CGROUP / details))
    return None


def _page_cache(details: Path) -> int:
    """Bytes of cached files: counted as used, but given back as soon as anybody needs them."""
    lines = [line.split() for line in (_read(details) or "").splitlines()]
    values = {line[0].removeprefix("total_"): int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
    return values.get("inactive_file", 0) + values.get("active_file", 0)


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
