"""Builds the C++ tests with the address and undefined-behaviour sanitizers, and runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("c++", "g++", "clang++")


def without(what: str) -> None:
    """Skip, or fail where everything that the tests need was to be installed."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"no {what}, so the kernels were not tested under the sanitizers")
    pytest.skip(f"no {what}: install it to test the kernels under the sanitizers")


def build(folder: Path) -> Path:
    """Compile kernel_tests; what has not changed since the last time is kept."""
    if not shutil.which("cmake"):
        without("CMake")
    if not os.environ.get("CXX") and not any(map(shutil.which, COMPILERS)):
        without("C++ compiler")
    options = ["-DQWILL_TESTS=ON", "-DQWILL_PYTHON=OFF"]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    for command in (["cmake", "-S", ROOT / "csrc", "-B", folder, *options], ["cmake", "--build", folder]):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder / "kernel_tests"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kernels_and_pool_keep_to_their_memory(pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.cache
    assert cache is not None
    tests = build(cache.mkdir("kernel_tests"))
    result = subprocess.run([tests], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "pool: good" in result.stdout
