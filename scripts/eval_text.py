"""Fetch an English and a Chinese text for `qwill eval`, into the cache outside this folder.

    scripts/eval_text.py          both of them, one line each
    scripts/eval_text.py NAME     one of them (english, chinese); its path is the only line on stdout

Both are collections of quotations out of Debian packages, downloaded with apt; nothing is installed or run. Colours for
the terminal are taken out, and the rest is checked against its sha256. Knows nothing of evaluations.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from qwill.errors import DownloadError, IntegrityError, QwillError, SourceUnreachableError, UsageError
from qwill.hub.storage import cache_root

EXIT_MISSING = 3
TIMEOUT = 300
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Source:
    """A file of a Debian package, and the sha256 of the file without its colours."""

    package: str
    member: str
    sha256: str


SOURCES = {
    "english": Source(
        "fortunes-min",
        "./usr/share/games/fortunes/literature",
        "22eab7d53ce994d0466901bb0d799ae3289603e17dc0bdb7f16666931155c5a5",
    ),
    "chinese": Source(
        "fortunes-zh",
        "./usr/share/games/fortunes/chinese",
        "bcf6faba81b7aa730551e4454ccc7a3cd5e53cc8d0cf71961920ef99160b4178",
    ),
}
"""Quotations from and about literature (54 kB); quotations, proverbs and explanations of terms (2 MB)."""


def fetch(name: str) -> Path:
    """The path of one text, fetched if need be.

    Raises:
        UsageError: there is no text of this name.
        DownloadError: it is not here and cannot be fetched, or is not the expected one.
    """
    if name not in SOURCES:
        raise UsageError(f"there is no evaluation text {name!r:.100}", hint="known: " + ", ".join(SOURCES))
    path = cache_root() / "test-data" / "eval-text" / f"{name}.txt"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            fresh = Path(scratch) / path.name
            fresh.write_bytes(take_text(download(SOURCES[name].package, Path(scratch)), SOURCES[name]))
            fresh.rename(path)
    return path


def download(package: str, into: Path) -> Path:
    """Download a package with apt's own configuration; it is not installed."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise SourceUnreachableError(f"{tool} is not installed", hint="use Debian or Ubuntu, or a text of your own")
    result = run(["apt-get", "download", "--quiet", package], into)
    archives = list(into.glob("*.deb"))
    if result.returncode or len(archives) != 1:
        told = result.stderr.decode("utf-8", "replace").strip()[-200:]
        raise SourceUnreachableError("apt-get download failed", where=f"{package}: {told}", hint="apt-get update first")
    return archives[0]


def take_text(archive: Path, source: Source) -> bytes:
    """The text in a package, without colours; refused if it is not the expected one."""
    text = COLOUR.sub(b"", read_member(archive, source.member))
    if hashlib.sha256(text).hexdigest() != source.sha256:
        raise IntegrityError(
            "the text in the package is not the expected one", where=f"{archive.name}, {source.member}"
        )
    return text


def read_member(archive: Path, member: str) -> bytes:
    """A file of a package as it is; empty when the package has none of that name."""
    unpacked = run(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent)
    if unpacked.returncode:
        raise DownloadError("the package cannot be unpacked", where=archive.name)
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as tar:
        file = tar.extractfile(member) if member in tar.getnames() else None
        return file.read() if file else b""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """A command's exit code and output, or an error after five minutes."""
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise SourceUnreachableError(f"{command[0]} took longer than {TIMEOUT} s", where=" ".join(command)) from error


def main(arguments: list[str]) -> int:
    """See the top of this file. Returns the exit code."""
    try:
        for name in arguments or SOURCES:
            path = fetch(name)
            print(path if arguments else f"eval_text: {name} is in {path}", flush=True)
    except QwillError as error:
        print(error, file=sys.stderr)
        return EXIT_MISSING if isinstance(error, DownloadError) else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
