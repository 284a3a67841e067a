"""Where a number was measured: processor, memory, versions, load, and how fast memory can be read.

Decoding reads every weight once per token, so the read bandwidth is the speed limit that a decode speed is held
against. Linux tells most; elsewhere what is unknown is left out. Torch is imported only to measure.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwill import __version__
from qwill.system import available_memory, usable_cores

__all__ = ["machine_facts", "peak_rss", "read_bandwidth", "warm_page_cache"]

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "xllamacpp")
WORTH_TELLING = ("fma", "avx2", "f16c", "avx_vnni", "avx512", "amx", "asimd", "sve", "i8mm", "bf16")
"""Processor flags that begin with, or contain, one of these decide which kernels can run."""
BANDWIDTH_BYTES = 1 << 28
BANDWIDTH_SECONDS = 0.6


def machine_facts() -> dict[str, Any]:
    """Everything about the machine and the software that a reader needs to judge a number."""
    cpuinfo = _cpuinfo()
    return {
        "cpu": cpuinfo.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cpu_flags": _flags(cpuinfo),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available_memory_bytes": available_memory(),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {"qwill": __version__, **_versions()},
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _flags(cpuinfo: dict[str, str]) -> list[str]:
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    return sorted(flag for flag in flags if any(word in flag for word in WORTH_TELLING))


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peak_rss() -> int:
    """Most memory that this process has held, in bytes, files mapped into it included."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads of this process read from memory, at best.

    Far more than any cache holds is read and added up, by a kernel of ours that does nothing else. Without native
    kernels it is the best of torch's sum, torch's matrix-vector product, and our own one-row bf16 linear layer.
    """
    try:
        readers = [_native_reader(threads)]
    except ImportError:
        readers = _torch_readers(threads)
    return BANDWIDTH_BYTES / min(_fastest(reader, BANDWIDTH_SECONDS / len(readers)) for reader in readers)


def _native_reader(threads: int) -> Callable[[], Any]:
    import torch

    from qwill import _native

    pool, words = _native.Pool(threads), torch.ones(BANDWIDTH_BYTES // 4)
    return lambda: _native.read(pool, _native.kernels(""), words.data_ptr(), len(words))


def _torch_readers(threads: int) -> list[Callable[[], Any]]:
    import torch

    from qwill import ops

    torch.set_num_threads(threads)
    words = torch.ones(BANDWIDTH_BYTES // 4)
    matrix, vector = words.view(-1, 1024), torch.ones(1024)
    halves, row = words.view(torch.bfloat16).view(-1, 1024), torch.ones(1, 1024, dtype=torch.bfloat16)
    return [words.sum, lambda: matrix @ vector, lambda: ops.linear(row, halves)]


def _fastest(work: Callable[[], Any], seconds: float) -> float:
    """The shortest of at least three runs; goes on until `seconds` are over."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def warm_page_cache(path: Path) -> int:
    """Read a model's files once, so that every contestant finds them in memory. Returns the bytes read."""
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    buffer = bytearray(1 << 24)
    total = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
    return total
