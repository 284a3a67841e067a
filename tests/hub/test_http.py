"""The client of one hub: bounded answers, time limits, redirects by hand, secrets that stay at home."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from qwill.errors import AccessError, DownloadError, IntegrityError, ModelNotFoundError, QwillError, SettingError
from qwill.errors import SourceUnreachableError as Unreachable
from qwill.hub.http import HttpClient, TransientError, checked_endpoint, printable

LISTING = "/api/models/acme/tiny-qwen/revision/main?blobs=true"


def client_of(endpoint: str, **more: Any) -> HttpClient:
    def refusal(response: Any) -> QwillError:
        return ModelNotFoundError(f"refused with {response.status_code}")

    return HttpClient(endpoint, **{"secrets": {}, "home": "https://hub.invalid", "refusal": refusal, **more})


def test_json_is_read(hub: Any) -> None:
    with client_of(hub.url) as client:
        assert client.json(hub.url + LISTING)["id"] == "acme/tiny-qwen"


def test_an_endpoint_where_nobody_listens_fails_at_once_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: asked.append(a) or real(*a, **k))
    began = time.monotonic()
    with client_of("http://127.0.0.1:9") as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:9.*\n.*mirror"):
        client.json("http://127.0.0.1:9/x")
    assert time.monotonic() - began < 2
    assert len(asked) == 1


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_says_nothing_is_given_up_in_time(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.3")
    began = time.monotonic()
    with client_of(silent) as client, pytest.raises(Unreachable, match=r"no whole answer within 0\.3 s"):
        client.json(silent + "/x")
    assert time.monotonic() - began < 2


def test_a_name_look_up_that_hangs_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: never.wait(1.0) or [])
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.3")
    began = time.monotonic()
    with client_of("http://hub.invalid") as client, pytest.raises(Unreachable):
        client.json("http://hub.invalid/x")
    assert time.monotonic() - began < 0.9
    never.set()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"body": b"<html>please log in</html>"}, "does not answer with JSON"),
        ({"body": b"[" * 100_000}, "does not answer with JSON"),
        ({"body": b"\x1f\x8b", "headers": {"Content-Encoding": "gzip"}}, "compresses"),
        ({"body": b" " * (33 << 20)}, "more than 33554432 bytes"),
        ({"status": 302, "headers": {"Location": LISTING}}, "circles"),
        ({"status": 302, "headers": {"Location": "file:///etc/passwd"}}, "nowhere"),
        ({"status": 410}, "refused with 410"),
    ],
)
def test_a_senseless_answer_is_a_typed_error(hub: Any, fault: dict[str, Any], text: str) -> None:
    hub.fail("listing", times=9, **fault)
    with client_of(hub.url) as client, pytest.raises(QwillError, match=text):
        client.json(hub.url + LISTING)
    assert len(hub.requests) < 9


def test_a_redirect_from_https_to_http_is_refused() -> None:
    import httpx2

    response = httpx2.Response(302, headers={"Location": "http://hub.invalid/x"})
    with client_of("https://hub.invalid") as client, pytest.raises(IntegrityError, match="https to http"):
        client._next("https://hub.invalid/y", response, 1)


def test_a_busy_hub_is_asked_a_second_time_and_then_left(hub: Any) -> None:
    hub.fail("listing", times=2, status=429, headers={"Retry-After": "0"})
    with client_of(hub.url) as client, pytest.raises(DownloadError, match="too many requests"):
        client.json(hub.url + LISTING)
    assert len(hub.requests) == 2
    with client_of(hub.url) as client:
        assert client.json(hub.url + LISTING)


def test_a_long_wait_is_told_instead_of_waited_for(hub: Any) -> None:
    hub.fail("listing", status=429, headers={"Retry-After": "3600"})
    with client_of(hub.url) as client, pytest.raises(DownloadError, match="try again in 3600 s"):
        client.json(hub.url + LISTING)
    assert len(hub.requests) == 1


def test_secrets_are_sent_to_the_endpoint_only(hub: Any, make_hub: Any) -> None:
    other = make_hub()
    other.add_tiny()
    hub.fail("listing", status=307, headers={"Location": other.url + LISTING})
    secrets = {"Authorization": "Bearer s3cret", "Cookie": "m_session_id=s3cret"}
    with client_of(hub.url, secrets=secrets) as client:
        assert client.json(hub.url + LISTING)["sha"]
    assert hub.requests[0].headers["cookie"] == "m_session_id=s3cret"
    assert hub.requests[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(other.requests)


def test_no_compressed_body_is_asked_for(hub: Any) -> None:
    with client_of(hub.url) as client:
        client.json(hub.url + LISTING)
    assert hub.requests[0].headers["accept-encoding"] == "identity"


def test_head_follows_the_endpoint_and_stops_at_another_host(hub: Any) -> None:
    url = f"{hub.url}/acme/tiny-qwen/resolve/main/model.safetensors"
    hub.heads += [
        {
            "status": 307,
            "headers": {"Location": "/acme/tiny-qwen/resolve/main/model.safetensors", "X-Linked-Size": "1"},
        },
        {"status": 302, "headers": {"Location": "https://storage.invalid/x", "X-Linked-Size": "100000"}},
    ]
    with client_of(hub.url) as client:
        assert client.head(url)["X-Linked-Size"] == "100000"
        assert client.head(url)["X-Linked-Etag"]
        hub.heads += [{"status": 307, "headers": {"Location": url}}] * 9
        with pytest.raises(DownloadError, match="circles"):
            client.head(url)


def test_a_lost_connection_may_come_back(hub: Any) -> None:
    hub.fail("model.safetensors", cut=10)
    url = f"{hub.url}/acme/tiny-qwen/resolve/main/model.safetensors"
    with client_of(hub.url) as client, pytest.raises(TransientError) as caught, client.stream(url) as response:
        assert len(b"".join(response.iter_raw())) < 0
    assert isinstance(caught.value.error, DownloadError)


BROKEN = ["http://[", "http://hub.invalid:x", "http://hub.invalid:99999", "http://hub.invalid:0"]


@pytest.mark.parametrize("location", BROKEN[:3])
def test_a_redirect_to_no_address_is_a_typed_error(hub: Any, location: str) -> None:
    hub.fail("model.safetensors", redirect=location)
    url = f"{hub.url}/acme/tiny-qwen/resolve/main/model.safetensors"
    with client_of(hub.url) as client, pytest.raises(DownloadError, match="to nowhere"), client.stream(url):
        pass


@pytest.mark.parametrize(
    "text", ["", "hub", "ftp://hub.invalid", "https://", "https://hub.invalid/?x=1", "file:///x", *BROKEN]
)
def test_an_endpoint_that_is_no_web_address_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="not a web address"):
        checked_endpoint(text, "endpoint")


def test_a_password_in_the_endpoint_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingError, match="holds a password") as error:
        checked_endpoint("https://me:s3cret@hub.invalid", "HF_ENDPOINT")
    assert "s3cret" not in str(error.value)
    with pytest.raises(SettingError, match="not a web address") as error:
        checked_endpoint("https://me:s3cret@[", "HF_ENDPOINT")
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("token", ["模型", "a\nb"])
def test_a_senseless_token_is_a_typed_error(hub: Any, token: str) -> None:
    with pytest.raises(AccessError, match="no token has"):
        client_of(hub.url, secrets={"Authorization": f"Bearer {token}"})


def test_an_endpoint_loses_its_last_slash() -> None:
    assert checked_endpoint("https://hf-mirror.com/", "endpoint") == "https://hf-mirror.com"


def test_text_from_a_server_is_made_safe_to_print() -> None:
    assert printable("a\x1b[31m\nb" + "x" * 500) == ("a [31m b" + "x" * 500)[:200]
    assert printable("模型") == "模型"
