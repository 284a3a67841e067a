"""Pulling from a local hub that speaks Hugging Face's interface; the cache is checked with huggingface_hub itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import AccessError, DownloadError, IntegrityError, ModelNotFoundError, UnsupportedModelError
from qwill.hub import huggingface, resolve


def get(name: str, hub: Any, **more: Any) -> Any:
    return resolve(name, **{"source": "huggingface", "endpoint": hub.url, **more})


def test_only_what_is_needed_is_fetched(hub: Any) -> None:
    found = get(hub.repo, hub)
    assert (found.name, found.source, found.revision) == (hub.repo, "huggingface", "main")
    assert sorted(p.name for p in found.path.iterdir()) == sorted(hub.fetched)
    assert all((found.path / name).read_bytes() == hub.files[name] for name in hub.fetched)
    assert {r.path.rsplit("/", 1)[-1] for r in hub.requests[1:]} == set(hub.fetched)


def test_the_cache_is_huggingface_hubs(hub: Any, caches: Path) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    found = get(hub.repo, hub)
    info = scan_cache_dir(caches / "hf")
    assert info.warnings == []
    assert [(repo.repo_id, sorted(repo.refs)) for repo in info.repos] == [(hub.repo, ["main"])]
    assert list(info.incomplete_files) == []
    loaded = try_to_load_from_cache(hub.repo, "model.safetensors", cache_dir=caches / "hf")
    assert loaded == str(found.path / "model.safetensors")


def test_what_huggingface_hub_downloaded_is_found_without_network(hub: Any, caches: Path) -> None:
    theirs = {their_download(hub, name, caches).parent for name in hub.fetched}
    hub.requests.clear()
    assert {get(hub.repo, hub, offline=True).path} == theirs
    assert hub.requests == []


def test_what_huggingface_hub_has_in_part_is_not_fetched_again(hub: Any, caches: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        their_download(hub, name, caches)
    hub.requests.clear()
    get(hub.repo, hub)
    assert hub.gets("tokenizer.json") == hub.gets("/config.json") == []
    assert len(hub.gets("model.safetensors")) == 1


def their_download(hub: Any, name: str, caches: Path) -> Path:
    from huggingface_hub import constants, hf_hub_download

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        return Path(hf_hub_download(hub.repo, name, cache_dir=caches / "hf"))


def test_a_present_model_needs_no_request(hub: Any) -> None:
    first = get(hub.repo, hub)
    hub.requests.clear()
    assert get(hub.repo, hub) == first
    assert hub.requests == []


def test_a_commit_is_fetched_and_found(hub: Any) -> None:
    commit = "c" * 40
    hub.add_tiny(seed=1, commit=commit)
    hub.main[hub.repo] = "a" * 40
    found = get(f"{hub.repo}@{commit}", hub)
    assert found.path.name == commit == found.revision
    assert get(f"{hub.repo}@{commit}", hub, offline=True) == found
    assert get(hub.repo, hub).path.name == "a" * 40


def test_an_unknown_revision_is_said(hub: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="no revision 'v9'"):
        get(f"{hub.repo}@v9", hub)


@pytest.mark.parametrize("asked", ["acme/gguf:Q4_K_M", "acme/gguf:q4_k_m"])
def test_a_gguf_is_chosen_by_its_type(hub: Any, asked: str) -> None:
    names = ("tiny-Q8_0.gguf", "tiny-q4_k_m.gguf", "tiny-Q4_K_S.gguf")
    hub.add({"README.md": b"", **{name: name.encode() * 100 for name in names}}, "acme/gguf", "d" * 40)
    found = get(asked, hub)
    assert found.path.name == "tiny-q4_k_m.gguf"
    assert found.path.read_bytes() == b"tiny-q4_k_m.gguf" * 100
    assert [r.path.rsplit("/", 1)[-1] for r in hub.requests[1:]] == ["tiny-q4_k_m.gguf"]
    assert get(asked, hub, offline=True) == found


def test_a_missing_gguf_type_lists_what_is_there(hub: Any) -> None:
    hub.add({"tiny-Q8_0.gguf": b"1", "sub/tiny-Q4_K_M.gguf": b"2"}, "acme/gguf", "d" * 40)
    with pytest.raises(ModelNotFoundError, match=r"no GGUF of type Q5_0[\s\S]*Q4_K_M, Q8_0"):
        get("acme/gguf:Q5_0", hub)
    with pytest.raises(ModelNotFoundError, match="has 2 GGUF files"):
        get("acme/gguf", hub)


def test_shards_are_fetched_with_their_index(hub: Any) -> None:
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 1000 for n in (1, 2)}
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    files = {name: body for name, body in hub.files.items() if name != "model.safetensors"}
    hub.add({**files, **shards, "model.safetensors.index.json": index}, "acme/sharded", "e" * 40)
    found = get("acme/sharded", hub)
    assert all((found.path / name).read_bytes() == body for name, body in shards.items())


def test_an_index_that_names_an_absent_shard_is_an_error(hub: Any) -> None:
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model-00001-of-00002.safetensors": b"1"}
    hub.add({**files, "model.safetensors.index.json": index}, "acme/sharded", "e" * 40)
    with pytest.raises(DownloadError, match=r"not a whole model[\s\S]*model-00002-of-00002"):
        get("acme/sharded", hub)


def test_a_repository_of_pickles_is_refused(hub: Any) -> None:
    hub.add({"config.json": b"{}", "pytorch_model.bin": b"\x80"}, "acme/pickles", "e" * 40)
    with pytest.raises(UnsupportedModelError, match=r"pickle[\s\S]*convert"):
        get("acme/pickles", hub)
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.safetensors",
        "/etc/passwd",
        "..\\evil.json",
        "a/../../b",
        "a\0b",
        "x" * 300,
        "C:/x",
        "a//b",
        "new\nline",
    ],
)
def test_a_hostile_file_name_is_refused(hub: Any, caches: Path, name: str) -> None:
    hub.add({**hub.files, name: b"evil"})
    with pytest.raises(IntegrityError, match="could leave its folder"):
        get(hub.repo, hub)
    assert len(hub.requests) == 1
    assert list(caches.rglob("*")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: [],
        lambda answer: {**answer, "sha": "../../x"},
        lambda answer: {**answer, "sha": 5},
        lambda answer: {**answer, "siblings": None},
        lambda answer: {**answer, "siblings": [{"rfilename": 7}]},
        lambda answer: {**answer, "siblings": [{"rfilename": f"{n}.txt"} for n in range(100_001)]},
        lambda answer: {**answer, "siblings": [{**s, "size": -1} for s in answer["siblings"]]},
        lambda answer: {**answer, "siblings": [{**s, "size": "big"} for s in answer["siblings"]]},
        lambda answer: {**answer, "siblings": [{**s, "lfs": None, "blobId": "../../x"} for s in answer["siblings"]]},
    ],
)
def test_a_malformed_listing_is_a_typed_error(hub: Any, caches: Path, change: Any) -> None:
    hub.listing = change
    with pytest.raises(DownloadError):
        get(hub.repo, hub)
    assert list(caches.rglob("*")) == []


def test_a_listing_of_names_only_is_completed_by_head_requests(hub: Any) -> None:
    hub.listing = lambda answer: {**answer, "siblings": [{"rfilename": s["rfilename"]} for s in answer["siblings"]]}
    found = get(hub.repo, hub)
    assert (found.path / "model.safetensors").read_bytes() == hub.weights
    assert sum(r.method == "HEAD" for r in hub.requests) == len(hub.fetched)


@pytest.mark.parametrize(
    ("status", "headers", "error", "text"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, ModelNotFoundError, "no repository acme/tiny-qwen"),
        (401, {}, ModelNotFoundError, "hf auth login"),
        (401, {"X-Error-Code": "GatedRepo"}, AccessError, "accept its licence at .*acme/tiny-qwen"),
        (403, {"X-Error-Code": "GatedRepo"}, AccessError, "hf auth login"),
        (403, {}, AccessError, "gated"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, AccessError, "token"),
        (418, {"X-Error-Message": "a\x1b[31mteapot"}, DownloadError, r"answers 418[\s\S]*a \[31mteapot"),
    ],
)
def test_a_refused_listing_says_what_to_do(hub: Any, status: int, headers: Any, error: Any, text: str) -> None:
    hub.fail("listing", status=status, headers=headers)
    with pytest.raises(error, match=text):
        get(hub.repo, hub)
    assert len(hub.requests) == 1


def test_a_gate_before_the_weights_says_what_to_do(hub: Any) -> None:
    hub.fail("model.safetensors", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(AccessError, match="accept its licence"):
        get(hub.repo, hub)


def test_the_token_stays_with_its_host(hub: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    storage = make_hub()
    storage.repos = hub.repos
    hub.fail("model.safetensors", redirect=storage.url.replace("127.0.0.1", "localhost"))
    found = get(hub.repo, hub)
    assert (found.path / "model.safetensors").read_bytes() == hub.weights
    assert {r.headers.get("authorization") for r in hub.requests} == {"Bearer hf_secret"}
    assert [r.headers.get("authorization") for r in storage.requests] == [None]
    assert all("hf_secret" not in str(r.headers) for r in storage.requests)


def test_a_stored_token_that_cannot_be_read_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/dev/null/token")
    with pytest.raises(AccessError, match=r"token cannot be read.*Not a directory[\s\S]*HF_HOME"):
        huggingface.open_client("https://huggingface.co", "a/b", "main")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HF_ENDPOINT", "http://[", "HF_ENDPOINT = 'http://[' is not a web address"),
        ("HF_HUB_ETAG_TIMEOUT", "soon", "huggingface_hub cannot read its settings"),
    ],
)
def test_a_variable_that_huggingface_hub_cannot_read_is_a_typed_error(variable: str, value: str, words: str) -> None:
    code = "from qwill.hub import list_models; list_models()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, variable: value}, capture_output=True, text=True, check=False
    )
    assert f"SettingError: {words}" in done.stderr


def test_a_token_stored_by_logging_in_is_not_sent_to_a_mirror(
    hub: Any, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, get_token

    token = caches / "token"
    token.write_text("hf_stored")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(token))
    assert get_token() == "hf_stored"
    get(hub.repo, hub)
    assert {r.headers.get("authorization") for r in hub.requests} == {None}


def test_a_mirror_that_redirects_to_the_hub_itself_is_asked_instead(hub: Any) -> None:
    hub.fail("listing", status=307, headers={"Location": f"https://huggingface.co/api/models/{hub.repo}/revision/main"})
    hub.fail(
        "config.json", status=302, headers={"Location": f"https://huggingface.co/{hub.repo}/resolve/main/config.json"}
    )
    get(hub.repo, hub)  # the fixture fails the test if another host is looked up


def test_the_variables_of_huggingface_hub_are_honoured(hub: Any, caches: Path) -> None:
    code = f"from qwill.hub import pull; print(pull('{hub.repo}', source='huggingface').path)"
    environment = {"HF_HOME": str(caches / "home"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "t", "PATH": "/usr/bin:/bin"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert Path(result.stdout.strip()).parent.parent == caches / "home/hub/models--acme--tiny-qwen"
    assert {r.headers.get("authorization") for r in hub.requests} == {"Bearer t"}
