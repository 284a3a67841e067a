"""Hugging Face: repositories of the hub, or of a mirror, in huggingface_hub's own cache.

huggingface_hub says where the cache is, which endpoint to use and who the user is. The bytes are ours to fetch,
because it neither resumes after a kill nor checks the sha256 nor refuses a full disk (see `transfer`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from qwill.errors import AccessError, DownloadError, ModelNotFoundError, QwillError, SettingError
from qwill.hub.files import RemoteFile, check_file_names, wanted_files
from qwill.hub.http import HttpClient, TransientError, checked_endpoint, printable
from qwill.hub.snapshots import COMMIT, Listing

if TYPE_CHECKING:
    import httpx2

__all__ = ["DEFAULT_REVISION", "SOURCE", "cache_folder", "list_files", "open_client"]

SOURCE = "huggingface"
DEFAULT_REVISION = "main"
_HOME = "https://huggingface.co"
_ETAG = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_MAX_FILES = 100_000


def cache_folder() -> Path:
    """huggingface_hub's cache: HF_HUB_CACHE, or hub in HF_HOME.

    Raises:
        SettingError: huggingface_hub cannot start with the environment's variables.
    """
    return Path(_constants().HF_HUB_CACHE)


def _constants() -> ModuleType:
    """huggingface_hub's settings: it reads the environment while it is imported, and fails there."""
    try:
        from huggingface_hub import constants
    except ValueError as error:
        checked_endpoint(os.environ.get("HF_ENDPOINT") or _HOME, "HF_ENDPOINT")
        hint = "look at the environment variables that begin with HF_"
        raise SettingError(f"huggingface_hub cannot read its settings: {error}", hint=hint) from error
    return constants


def open_client(endpoint: str | None, repo: str, revision: str) -> HttpClient:
    """A client for the endpoint given, or for HF_ENDPOINT, that explains what the hub refuses."""
    address = checked_endpoint(endpoint or _constants().ENDPOINT, "endpoint" if endpoint else "HF_ENDPOINT")

    def refusal(response: httpx2.Response) -> QwillError:
        return _refusal(response, repo, revision)

    return HttpClient(address, secrets=_secrets(address), home=_HOME, refusal=refusal)


def list_files(client: HttpClient, repo: str, revision: str, quant: str | None) -> Listing:
    """Ask what the repository holds, and choose what is needed.

    Raises:
        ModelNotFoundError, AccessError, SourceUnreachableError, DownloadError: the hub has it not, or not for you.
        IntegrityError: the listing names files outside the repository.
    """
    url = f"{client.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
    answer = client.json(url)
    try:
        commit, siblings = answer["sha"], {sibling["rfilename"]: sibling for sibling in answer["siblings"]}
        if not COMMIT.fullmatch(commit) or len(siblings) > _MAX_FILES:
            raise DownloadError(f"{client.host} lists {repo} with no commit, or with too many files", where=url)
        check_file_names(siblings)
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{client.host} lists {repo} in a way that is not understood", where=url) from error
    names = wanted_files(list(siblings), quant, repo)
    return Listing(commit, [_remote_file(client, repo, commit, siblings[name]) for name in names])


def _secrets(endpoint: str) -> dict[str, str]:
    """The user's token. One that was stored by logging in to Hugging Face is not for mirrors; HF_TOKEN is."""
    if endpoint == _HOME:
        from huggingface_hub import get_token

        try:
            token = get_token()
        except (OSError, ValueError) as error:
            what = f"the stored Hugging Face token cannot be read: {printable(str(error))}"
            raise AccessError(what, hint="set HF_HOME to a folder you can read, or HF_TOKEN") from error
    else:
        token = os.environ.get("HF_TOKEN", "").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _remote_file(client: HttpClient, repo: str, commit: str, sibling: Mapping[str, Any]) -> RemoteFile:
    name = sibling["rfilename"]
    url = f"{client.endpoint}/{repo}/resolve/{commit}/{quote(name)}"
    lfs = sibling.get("lfs")
    size, etag = sibling.get("size"), lfs.get("sha256") if isinstance(lfs, dict) else sibling.get("blobId")
    if size is None or etag is None:  # a mirror that lists names only
        size, etag = _ask_about(client, url)
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str) or not _ETAG.fullmatch(etag):
        raise DownloadError(f"{client.host} states no size or no checksum for {name}", hint="choose another endpoint")
    return RemoteFile(name, size, etag, url)


def _ask_about(client: HttpClient, url: str) -> tuple[int | None, str]:
    try:
        headers = client.head(url)
    except TransientError as transient:
        raise transient.error from transient
    size = headers.get("X-Linked-Size", headers.get("Content-Length", ""))
    etag = headers.get("X-Linked-Etag", headers.get("ETag", ""))
    return int(size) if size.isdecimal() else None, etag.removeprefix("W/").strip('"')


def _refusal(response: httpx2.Response, repo: str, revision: str) -> QwillError:
    """What 401, 403, 404 and the like mean, by the hub's own error code."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    message = printable(response.headers.get("X-Error-Message", ""))
    if code == "GatedRepo" or (status == 403 and not code):
        hint = f"accept its licence at {_HOME}/{repo}, then hf auth login, or set HF_TOKEN"
        return AccessError(f"{repo} is gated: its owner must let you in", where=message, hint=hint)
    if "Invalid credentials" in message:
        return AccessError("Hugging Face does not accept the token", hint="hf auth login, or set HF_TOKEN anew")
    if code == "RevisionNotFound":
        return ModelNotFoundError(f"{repo} has no revision {revision!r}", hint="a branch, a tag or a commit")
    if code == "EntryNotFound":
        return DownloadError(
            f"{repo} lists a file that it does not have", where=str(response.url.path), hint="run again"
        )
    if status in (401, 404):  # 401 also for repositories that do not exist, when nobody is logged in
        hint = "check the name; if the repository is private: hf auth login, or set HF_TOKEN"
        return ModelNotFoundError(f"there is no repository {repo}, or it is private", where=message, hint=hint)
    return DownloadError(f"the server answers {status} for {repo}", where=message or response.url.path)
