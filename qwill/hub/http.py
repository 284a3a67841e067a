"""HTTP to one hub: every request starts at its endpoint, answers are bounded, and secrets stay with their host.

Knows no hub by name and no file layout. Uses httpx2 (what huggingface_hub uses), so proxies and certificates come
from the usual environment variables; it is imported only when something is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

from qwill.errors import AccessError, DownloadError, IntegrityError, QwillError, SettingError, SourceUnreachableError

if TYPE_CHECKING:
    import httpx2

__all__ = ["HttpClient", "TransientError", "checked_endpoint", "printable"]

CONNECT_SECONDS = 4.0
_MAX_JSON_BYTES = 32 << 20
_MAX_REDIRECTS = 6
_MAX_WAIT_SECONDS = 20.0
_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}


class TransientError(Exception):
    """Something that may go away by itself: a lost connection, 429, 5xx. Never leaves the hub package."""

    def __init__(self, error: QwillError, wait_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_seconds = wait_seconds


class HttpClient:
    """A client for one endpoint. A context manager.

    `secrets` are headers (Authorization, Cookie) that are sent to the endpoint's own host and to no other.
    `home` is the hub's main address: a mirror that redirects there is asked itself instead.
    `refusal` turns an answer with status 4xx into the error to raise.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        secrets: Mapping[str, str],
        home: str,
        refusal: Callable[[httpx2.Response], QwillError],
    ) -> None:
        import httpx2

        if not all(value.isascii() and value.isprintable() for value in secrets.values()):
            raise AccessError("the token holds characters that no token has", hint="set it again, without line breaks")
        self.endpoint = endpoint
        self._secrets = dict(secrets)
        self._home = home
        self._refusal = refusal
        read = _seconds("HF_HUB_DOWNLOAD_TIMEOUT")
        timeout = httpx2.Timeout(read, connect=min(CONNECT_SECONDS, read))
        # Bodies are asked for as they are: sizes and hashes are those of the file, and nothing can be inflated.
        headers = {"User-Agent": "qwill", "Accept-Encoding": "identity"}
        self._client = httpx2.Client(timeout=timeout, headers=headers, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def host(self) -> str:
        """Host and port of the endpoint, for error texts."""
        return urlsplit(self.endpoint).netloc

    def json(self, url: str) -> Any:
        """The JSON at a URL, within a time limit that covers name look-up, all redirects and the whole body.

        Raises:
            SourceUnreachableError: no connection or no whole answer in time (not tried again: the next source is).
            DownloadError: the server refuses, or what it sends is not JSON or too much of it.
        """
        for last in (False, True):
            try:
                return _within(_seconds("HF_HUB_ETAG_TIMEOUT"), lambda: self._json_once(url), self.host)
            except TransientError as transient:
                if last or transient.wait_seconds is None:
                    raise transient.error from transient
                time.sleep(min(transient.wait_seconds, 5.0))
        raise AssertionError

    def _json_once(self, url: str) -> Any:
        body = bytearray()
        with self.stream(url) as response:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MAX_JSON_BYTES:
                    raise IntegrityError(f"{self.host} sends more than {_MAX_JSON_BYTES} bytes of JSON", where=url)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            hint = "is the endpoint right? A log-in page of the network looks like this, too"
            raise DownloadError(f"{self.host} does not answer with JSON", where=url, hint=hint) from error

    def head(self, url: str) -> httpx2.Headers:
        """The headers of the endpoint's last answer about a file: of the redirect to another host, if it ends in one.

        Raises:
            TransientError, QwillError: as for `stream`.
        """
        for hops in range(1, _MAX_REDIRECTS + 2):
            with self._send("HEAD", url, {}) as response:
                if not response.is_redirect:
                    self._check(response)
                    return response.headers
                url = self._next(url, response, hops)
                if _origin(url) != _origin(self.endpoint):
                    return response.headers
        raise AssertionError

    @contextmanager
    def stream(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """GET with redirects followed by hand; the answers on the way are in `response.history`.

        A status other than 200, 206 and 416 is raised; read the body with `iter_raw`.

        Raises:
            TransientError: a lost connection or a status that asks to come back; holds the error to raise at last.
            QwillError: what `refusal` makes of the status.
        """
        hops: list[httpx2.Response] = []
        while True:
            with self._send("GET", url, headers or {}) as response:
                if not response.is_redirect:
                    self._check(response)
                    response.history = hops
                    yield response
                    return
                hops.append(response)
                url = self._next(url, response, len(hops))

    @contextmanager
    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        import httpx2

        secrets = self._secrets if _origin(url) == _origin(self.endpoint) else {}
        try:
            with self._client.stream(method, url, headers={**headers, **secrets}) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
            raise TransientError(_unreachable(urlsplit(url).netloc, str(error) or "no answer in time")) from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            text = f"the connection to {urlsplit(url).netloc} was lost: {_reason(error)}"
            raise TransientError(SourceUnreachableError(text, hint="run the same command again")) from error

    def _next(self, url: str, response: httpx2.Response, hops: int) -> str:
        try:
            target = urljoin(url, response.headers["Location"])
            home = _origin(target) == _origin(self._home)
        except ValueError as error:
            raise DownloadError(f"{self.host} redirects to nowhere: {error}", where=_bare(url)) from error
        if home:
            target = self.endpoint + target[len(self._home) :]
        if hops > _MAX_REDIRECTS or urlsplit(target).scheme not in ("http", "https"):
            raise DownloadError(f"{self.host} redirects in circles or to nowhere", where=_bare(target))
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
            raise IntegrityError(f"{self.host} redirects from https to http", where=_bare(target))
        return target

    def _check(self, response: httpx2.Response) -> None:
        status = response.status_code
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DownloadError(f"{self.host} compresses what was asked for as it is", where=_bare(str(response.url)))
        if status in (200, 206, 416):
            return
        if status in _TRANSIENT_STATUS:
            raise self._come_back(response)
        raise self._refusal(response)

    def _come_back(self, response: httpx2.Response) -> TransientError:
        wait = _retry_after(response)
        why = "too many requests" if response.status_code == 429 else "the server has a problem"
        error = DownloadError(
            f"{self.host} answers {response.status_code} ({why})",
            where=_bare(str(response.url)),
            hint=f"try again in {wait:.0f} s, or choose another source or endpoint",
        )
        if wait > _MAX_WAIT_SECONDS:
            raise error
        return TransientError(error, wait)


def checked_endpoint(text: str, setting: str) -> str:
    """An endpoint's address without the slash at its end.

    Raises:
        SettingError: not an http or https address.
    """
    try:
        parts = urlsplit(text)
        bad = parts.port == 0
    except ValueError:  # half an IPv6 address, or a port that is no number
        raise _no_address(text, setting) from None
    if parts.username or parts.password:
        raise SettingError(f"{setting} holds a password", hint="leave it out of the address; HF_TOKEN is for secrets")
    if bad or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise _no_address(text, setting)
    return text.rstrip("/")


def _no_address(text: str, setting: str) -> SettingError:
    shown = re.sub(r"//[^/]*@", "//…@", text)  # no password, even when the rest cannot be understood
    return SettingError(f"{setting} = {shown!r:.200} is not a web address", hint="for example https://hf-mirror.com")


def printable(text: str) -> str:
    """Text from a server, made safe to show: no control characters, at most 200 characters."""
    return re.sub(r"[^\x20-\x7e\u00a0-\uffff]", " ", text)[:200]


def _bare(url: str) -> str:
    """A URL to show: without the query, which may hold a signature."""
    return printable(url.partition("?")[0])


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _reason(error: Exception) -> str:
    return printable(str(error)) or type(error).__name__


def _unreachable(host: str, reason: str) -> SourceUnreachableError:
    hint = "check the network and HTTPS_PROXY, or name a mirror with --endpoint URL"
    reason = re.sub(r"^\[Errno -?\d+\] ", "", printable(reason))
    return SourceUnreachableError(f"cannot reach {host}: {reason}", hint=hint)


def _retry_after(response: httpx2.Response) -> float:
    """Seconds the server asks to wait; 1 when it does not say or says it as a date."""
    value = response.headers.get("Retry-After", "").strip()
    return float(value) if re.fullmatch(r"\d{1,6}", value) else 1.0


def _seconds(variable: str) -> float:
    """A time limit from the environment variables that huggingface_hub has for it; 10 s by default."""
    text = os.environ.get(variable, "").strip()
    return float(text) if re.fullmatch(r"\d{1,5}(\.\d+)?", text) and float(text) > 0 else 10.0


def _within(seconds: float, work: Callable[[], Any], host: str) -> Any:
    """Run `work` in a thread and give up on it after `seconds`: a name look-up, for one, cannot be interrupted."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise _unreachable(host, f"no whole answer within {seconds:g} s")
    return outcome[0]
