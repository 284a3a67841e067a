"""Is this model's copy on disk whole and sane? Sizes, hashes, headers, names and shapes, and every value.

Reads each byte once, in pieces, and never changes anything. A bad model is no exception here: what is wrong becomes
a finding. Knows no network: the promised hashes come from the caller, or from the hub's cache, which names a file's
bytes by their hash. Knows nothing of how a report is shown.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qwill.checkpoint_names import EMBEDDING, LM_HEAD, match_tensors
from qwill.config import ModelConfig, config_from_gguf, config_from_json
from qwill.errors import QwillError
from qwill.formats import Checkpoint, TensorInfo, open_checkpoint
from qwill.formats.dequantize import BLOCKS, DEQUANTIZABLE, dequantize
from qwill.formats.folder import allowed_file
from qwill.hub.progress import Progress, SilentProgress

__all__ = ["Finding", "VerifyReport", "verify"]

_PIECE = 2**18  # bytes read at a time, about
_LISTED = 10


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    `level` is "error" (do not use these files) or "warning" (could not be checked, or unusual). `where` names the
    file and, where that is known, the tensor and the offset in bytes from the start of the file.
    """

    level: str
    what: str
    where: str = ""


@dataclass
class VerifyReport:
    """What was checked, and what was found.

    `hashed` counts the files whose hash was promised and compared; `scanned` the tensors whose values were looked at.
    """

    path: Path
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    hashed: int = 0
    tensors: int = 0
    scanned: int = 0
    bytes_read: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no error; there may be warnings."""
        return all(finding.level != "error" for finding in self.findings)

    def error(self, what: str, where: str = "") -> None:
        """Add an error."""
        self.findings.append(Finding("error", what, where))

    def warning(self, what: str, where: str = "") -> None:
        """Add a warning."""
        self.findings.append(Finding("warning", what, where))


@dataclass(frozen=True)
class _Promise:
    """What a file must be: its size (None: not known) and a hash, as hashlib calls it or "git" for git's sha1."""

    size: int | None
    algorithm: str
    digest: str


def verify(
    path: Path,
    *,
    progress: Progress | None = None,
    full: bool = True,
    expected: Mapping[str, tuple[int, str]] | None = None,
) -> VerifyReport:
    """Check a model folder, a .gguf file or a .safetensors file.

    Args:
        full: False leaves out everything that reads more than headers: hashes and values.
        expected: file name -> size in bytes and sha256 (hex), where these are known from elsewhere.

    Returns:
        The report. Nothing is raised for a bad or missing model.
    """
    report = VerifyReport(path)
    checkpoint = _open(path, report)
    tensors = list(checkpoint.tensors.values()) if checkpoint else []
    report.tensors = len(tensors)
    config = _config(path, checkpoint, report)
    if checkpoint and config:
        _check_names(checkpoint, config, report)
    try:
        files = _files(path, expected or {}, report)
        report.files = len(files)
        if full:
            _read_all(files, tensors, report, progress or SilentProgress())
    except OSError as error:
        report.error(f"cannot be read: {error.strerror}", str(error.filename or path))
    if checkpoint:
        if full and config and config.tie_word_embeddings:
            _check_tied_copy(checkpoint, config, report)
        checkpoint.close()
    return report


def _open(path: Path, report: VerifyReport) -> Checkpoint | None:
    try:
        return open_checkpoint(path)
    except QwillError as error:
        report.error(error.what, error.where)
        return None


def _config(path: Path, checkpoint: Checkpoint | None, report: VerifyReport) -> ModelConfig | None:
    """The configuration; a GGUF file that could not be opened, or a path that is not there, has none to complain of."""
    try:
        if checkpoint and checkpoint.format == "gguf":
            return config_from_gguf(checkpoint.metadata, checkpoint.tensors)
        if checkpoint or path.is_dir():
            return config_from_json(path if path.is_dir() else path.parent)
    except QwillError as error:
        report.error(error.what, error.where)
    return None


def _check_names(checkpoint: Checkpoint, config: ModelConfig, report: VerifyReport) -> None:
    """Names and shapes against the configuration: all that is missing, unused or of another shape."""
    match = match_tensors(checkpoint, config)
    wrong = [f"{info.name} is {list(info.shape)}, not {list(want)}" for info, want in match.wrong_shape]
    unused = [info.name for info in match.unused]
    where = str(checkpoint.path)
    for what, names in (("missing", match.missing), ("of the wrong shape", wrong), ("not used by the model", unused)):
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            report.error(f"{len(names)} tensors are {what}: {'; '.join(sorted(names)[:_LISTED])}{more}", where)


def _files(path: Path, expected: Mapping[str, tuple[int, str]], report: VerifyReport) -> dict[Path, _Promise | None]:
    """The files to read, and what each was promised to be; sizes and links are checked here."""
    folder = path if path.is_dir() else path.parent
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name] if path.exists() else []
    files: dict[Path, _Promise | None] = {}
    for name in names:
        try:
            file = allowed_file(folder, name) if path.is_dir() else path
        except QwillError as error:
            report.error(error.what, error.where)
            continue
        if not file.is_file():
            if file.is_symlink():
                report.error("the link leads to no file", str(file))
            continue
        promise = _Promise(expected[name][0], "sha256", expected[name][1]) if name in expected else _blob_promise(file)
        files[file] = promise
        if promise and promise.size not in (None, file.stat().st_size):
            report.error(f"the file has {file.stat().st_size} bytes, not {promise.size}", str(file))
    for name in sorted(expected.keys() - set(names)):
        report.error("the file is missing", str(folder / name))
    return files


def _blob_promise(file: Path) -> _Promise | None:
    """A link of the hub's cache points to blobs/HASH: the sha256 of the bytes (64 digits), or git's sha1 (40)."""
    if not file.is_symlink():
        return None
    target = Path(os.readlink(file))
    if target.parent.name != "blobs" or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", target.name):
        return None
    return _Promise(None, "git" if len(target.name) == 40 else "sha256", target.name)


def _read_all(
    files: Mapping[Path, _Promise | None], tensors: Iterable[TensorInfo], report: VerifyReport, progress: Progress
) -> None:
    try:
        progress.start(sum(file.stat().st_size for file in files), "verify")
        for file, promise in files.items():
            inside = sorted((info for info in tensors if info.file == file), key=lambda t: t.offset)
            _read(file, inside, promise, report=report, progress=progress)
    finally:
        progress.finish()


def _read(
    file: Path, tensors: Iterable[TensorInfo], promise: _Promise | None, *, report: VerifyReport, progress: Progress
) -> None:
    """Read a file once, from its first byte to its last: hash all of it, and look at the values of its tensors."""
    size = file.stat().st_size
    hasher = _hasher(promise, size)
    scans = {info.name: _Scan(info) for info in tensors}
    with file.open("rb", buffering=0) as stream:
        for start, count, info in _pieces(size, tensors):
            piece = np.fromfile(stream, np.uint8, count)
            if piece.size < count:
                report.error("the file became shorter while it was read", f"{file}, offset {start}")
                return
            if hasher:
                hasher.update(piece)
            if info:
                scans[info.name].look(piece, start)
            report.bytes_read += count
            progress.advance(count, info.name if info else file.name)
    for scan in scans.values():
        scan.conclude(report)
    if hasher and promise:
        report.hashed += 1
        if hasher.hexdigest() != promise.digest:
            name = "git hash" if promise.algorithm == "git" else promise.algorithm
            report.error(f"the {name} is {hasher.hexdigest()}, not {promise.digest}", str(file))


def _hasher(promise: _Promise | None, size: int) -> Any:
    if promise is None:
        return None
    if promise.algorithm == "git":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.new(promise.algorithm)


def _pieces(size: int, tensors: Iterable[TensorInfo]) -> Iterator[tuple[int, int, TensorInfo | None]]:
    """(start, bytes, tensor) of pieces that cover a file in order; within a tensor, pieces are whole blocks."""
    position = 0
    for info in tensors:
        yield from _cut(position, info.offset, 1, None)
        yield from _cut(info.offset, info.offset + info.nbytes, _unit(info.dtype), info)
        position = info.offset + info.nbytes
    yield from _cut(position, size, 1, None)


def _unit(dtype: str) -> int:
    """Bytes that are looked at together; packed weights are not looked at."""
    return BLOCKS[dtype][1] if dtype in BLOCKS else 1


def _cut(start: int, end: int, unit: int, info: TensorInfo | None) -> Iterator[tuple[int, int, TensorInfo | None]]:
    step = _PIECE // unit * unit
    for position in range(start, end, step):
        yield position, min(step, end - position), info


class _Scan:
    """The values of one tensor, piece by piece: which is the first that is not finite, and are all of them zero?"""

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        self._bad = 0
        self._first = -1
        self._all_zero = True

    def look(self, piece: npt.NDArray[np.uint8], start: int) -> None:
        """`piece`: whole blocks from byte `start` of the file on."""
        if self._info.dtype not in DEQUANTIZABLE:
            return
        elements, block_bytes = BLOCKS[self._info.dtype]
        values = dequantize(piece, self._info.dtype, (piece.size // block_bytes * elements,))
        finite = np.isfinite(values)
        self._all_zero = self._all_zero and not np.count_nonzero(values)  # any() warns of a signalling NaN
        if finite.all():
            return
        if not self._bad:
            self._first = start + int(finite.argmin()) // elements * block_bytes
        self._bad += int(finite.size - np.count_nonzero(finite))

    def conclude(self, report: VerifyReport) -> None:
        """Put what was found into the report."""
        info = self._info
        where = f"{info.file}, tensor {info.name}"
        if info.dtype not in DEQUANTIZABLE:
            report.warning(f"the values of type {info.dtype} were not looked at", where)
            return
        report.scanned += 1
        if self._bad:
            kind = "value" if BLOCKS[info.dtype][0] == 1 else "block"
            report.error(
                f"{self._bad} of {info.numel} values are not finite (NaN or infinite)",
                f"{where}, offset {self._first} (the first such {kind})",
            )
        if self._all_zero and info.nbytes and len(info.shape) > 1:
            report.warning("every value is zero", f"{where}, offset {info.offset}")


def _check_tied_copy(checkpoint: Checkpoint, config: ModelConfig, report: VerifyReport) -> None:
    """A tied model may carry its head a second time; then it must be the embedding's copy."""
    found = match_tensors(checkpoint, config).found
    head, embedding = found.get(LM_HEAD), found.get(EMBEDDING)
    if head is None or embedding is None:
        return
    same = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
    ours, theirs = checkpoint.raw(head.name), checkpoint.raw(embedding.name)
    for start in range(0, head.nbytes if same else 0, _PIECE):
        same = same and bool(np.array_equal(ours[start : start + _PIECE], theirs[start : start + _PIECE]))
    checkpoint.release(head.name)
    checkpoint.release(embedding.name)
    if not same:
        report.error(
            f"the model's head is tied to {embedding.name}, but differs from it", f"{head.file}, tensor {head.name}"
        )
