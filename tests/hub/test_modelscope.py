"""Pulling from a local hub that speaks ModelScope's interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwill.errors import AccessError, DownloadError, IntegrityError, ModelNotFoundError
from qwill.hub import pull, resolve


def get(name: str, hub: Any, **more: Any) -> Any:
    return resolve(name, **{"source": "modelscope", "endpoint": hub.url, **more})


def test_a_model_is_fetched_into_our_own_cache_and_found(hub: Any, caches: Path) -> None:
    found = get(hub.repo, hub)
    assert (found.source, found.revision) == ("modelscope", "master")
    assert caches / "qwill" / "modelscope" in found.path.parents
    assert sorted(p.name for p in found.path.iterdir()) == sorted(hub.fetched)
    assert all((found.path / name).read_bytes() == hub.files[name] for name in hub.fetched)
    assert not (caches / "hf").exists()
    hub.requests.clear()
    assert get(hub.repo, hub, offline=True) == found
    assert hub.requests == []


def test_it_is_asked_as_its_own_client_asks(hub: Any) -> None:
    get(f"{hub.repo}@v1.0", hub)
    assert hub.requests[0].path == "/api/v1/models/acme/tiny-qwen/repo/files?Revision=v1.0&Recursive=true"
    assert hub.requests[-1].path == "/api/v1/models/acme/tiny-qwen/repo?Revision=v1.0&FilePath=model.safetensors"


def test_the_token_is_sent_as_header_and_cookie(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-1")
    get(hub.repo, hub)
    sent = {(r.headers.get("authorization"), r.headers.get("cookie")) for r in hub.requests}
    assert sent == {("Bearer ms-1", "m_session_id=ms-1")}


@pytest.mark.parametrize("variable", ["MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"])
def test_the_endpoint_comes_from_its_variables(hub: Any, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("MODELSCOPE_ENDPOINT")
    monkeypatch.setenv(variable, hub.url)
    assert get(hub.repo, hub, endpoint=None).source == "modelscope"


def test_a_pull_brings_the_model_up_to_date(hub: Any) -> None:
    old = get(hub.repo, hub)
    hub.add_tiny(seed=1)
    new = pull(hub.repo, source="modelscope", endpoint=hub.url)
    assert new.path != old.path
    assert (new.path / "model.safetensors").read_bytes() == hub.weights
    assert get(hub.repo, hub, offline=True) == new
    assert len(hub.gets("tokenizer.json")) == 1


def test_a_wrong_hash_is_noticed(hub: Any) -> None:
    hub.fail("model.safetensors", times=2, body=b"?" * 100_000)
    with pytest.raises(IntegrityError, match="another content"):
        get(hub.repo, hub)


def test_a_repository_that_is_not_there_is_said(hub: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="no repository acme/other"):
        get("acme/other", hub)
    hub.listing = lambda answer: {"Code": 10010205001, "Success": False, "Message": "信息不存在", "Data": None}
    with pytest.raises(ModelNotFoundError, match="no repository acme/tiny-qwen"):
        get(hub.repo, hub)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_which_token_to_set(hub: Any, status: int) -> None:
    hub.fail("listing", status=status)
    with pytest.raises(AccessError, match="MODELSCOPE_API_TOKEN"):
        get(hub.repo, hub)


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: [],
        lambda answer: {"Code": 200},
        lambda answer: {"Code": 200, "Data": {"Files": 5}},
        lambda answer: {"Code": 200, "Data": {"Files": [{"Name": "x"}]}},
        lambda answer: {"Code": 200, "Data": {"Files": [{"Path": 5}]}},
        lambda answer: {"Code": 200, "Data": {"Files": [{**f, "Sha256": ""} for f in answer["Data"]["Files"]]}},
        lambda answer: {"Code": 200, "Data": {"Files": [{**f, "Size": -1} for f in answer["Data"]["Files"]]}},
        lambda answer: {"Code": 200, "Data": {"Files": [{"Path": f"{n}.txt"} for n in range(100_001)]}},
        lambda answer: {"Code": 200, "Data": {"Files": [{**f, "Path": "../x"} for f in answer["Data"]["Files"]]}},
    ],
)
def test_a_malformed_listing_is_a_typed_error(hub: Any, caches: Path, change: Any) -> None:
    hub.listing = change
    with pytest.raises(DownloadError):
        get(hub.repo, hub)
    assert list(caches.rglob("*")) == []


def test_a_model_that_it_has_not_is_said_without_a_request(hub: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="not published there"):
        get("smollm2-135m", hub)
    assert hub.requests == []
