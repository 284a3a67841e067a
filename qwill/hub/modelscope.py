"""ModelScope: repositories of modelscope.cn over its plain HTTP interface, kept below our own cache folder.

The interface, as the hub's own client uses it: `/api/v1/models/{id}/repo/files` lists every file with its size and
sha256; `/api/v1/models/{id}/repo?FilePath=` delivers one. The listing names no commit, so its digest stands for one.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from qwill.errors import AccessError, DownloadError, ModelNotFoundError, QwillError
from qwill.hub.files import RemoteFile, check_file_names, wanted_files
from qwill.hub.http import HttpClient, checked_endpoint
from qwill.hub.snapshots import Listing
from qwill.hub.storage import cache_root

if TYPE_CHECKING:
    import httpx2

__all__ = ["DEFAULT_REVISION", "SOURCE", "cache_folder", "list_files", "open_client"]

SOURCE = "modelscope"
DEFAULT_REVISION = "master"
_HOME = "https://modelscope.cn"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 100_000


def cache_folder() -> Path:
    """Where its repositories are kept, in the layout of the Hugging Face cache."""
    return cache_root() / SOURCE


def open_client(endpoint: str | None, repo: str, revision: str) -> HttpClient:
    """A client for the endpoint given, or for MODELSCOPE_ENDPOINT or MODELSCOPE_DOMAIN."""
    address = checked_endpoint(endpoint or _configured_endpoint(), "endpoint" if endpoint else "MODELSCOPE_ENDPOINT")

    def refusal(response: httpx2.Response) -> QwillError:
        return _refusal(response.status_code, repo, revision)

    return HttpClient(address, secrets=_secrets(), home=_HOME, refusal=refusal)


def _configured_endpoint() -> str:
    domain = os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN") or _HOME
    return domain if "://" in domain else f"https://{domain}"


def _secrets() -> dict[str, str]:
    """The token, in both forms that the hub knows: its older addresses look for the cookie."""
    token = os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
    return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}


def list_files(client: HttpClient, repo: str, revision: str, quant: str | None) -> Listing:
    """Ask what the repository holds, and choose what is needed.

    Raises:
        ModelNotFoundError, AccessError, SourceUnreachableError, DownloadError: the hub has it not, or not for you.
        IntegrityError: the listing names files outside the repository.
    """
    base = f"{client.endpoint}/api/v1/models/{repo}/repo"
    url = f"{base}/files?{urlencode({'Revision': revision, 'Recursive': 'true'})}"
    answer = client.json(url)
    try:
        if answer.get("Code") != 200:
            raise _refusal(404, repo, revision)
        files = {file["Path"]: file for file in answer["Data"]["Files"] if file.get("Type") != "tree"}
        if len(files) > _MAX_FILES:
            raise DownloadError(f"{client.host} lists more than {_MAX_FILES} files for {repo}", where=url)
        check_file_names(files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{client.host} lists {repo} in a way that is not understood", where=url) from error
    content = sorted((name, str(file.get("Sha256"))) for name, file in files.items())
    commit = hashlib.sha1(repr(content).encode(), usedforsecurity=False).hexdigest()
    names = wanted_files(list(files), quant, repo)
    return Listing(commit, [_remote_file(client, base, revision, files[name]) for name in names])


def _remote_file(client: HttpClient, base: str, revision: str, file: dict[str, Any]) -> RemoteFile:
    name, size, sha256 = file["Path"], file.get("Size"), file.get("Sha256")
    if not isinstance(size, int) or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DownloadError(f"{client.host} states no size or no checksum for {name}", hint="choose another source")
    return RemoteFile(name, size, sha256, f"{base}?{urlencode({'Revision': revision, 'FilePath': name})}")


def _refusal(status: int, repo: str, revision: str) -> QwillError:
    if status in (401, 403):
        hint = "set MODELSCOPE_API_TOKEN to a token of an account that may read it"
        return AccessError(f"ModelScope does not give {repo} to you ({status})", hint=hint)
    if status == 404:
        what = f"there is no repository {repo} with revision {revision!r} on ModelScope, or it is private"
        return ModelNotFoundError(what, hint="check the name; private: set MODELSCOPE_API_TOKEN")
    return DownloadError(f"ModelScope answers {status} for {repo}")
