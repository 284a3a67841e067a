"""A hub on the loopback: enough of Hugging Face's and of ModelScope's interface to pull from, with faults on order.

What it answers follows the hubs' own clients: huggingface_hub downloads from it in one of the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

REPO = "acme/tiny-qwen"
COMMIT = "a" * 40
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


FETCHED = [
    *("LICENSE", "config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"),
    *("tokenizer.json", "model.safetensors"),
]


@dataclass
class Fault:
    """What goes wrong with one answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of the true one
    ignore_range: bool = False
    cut: int | None = None  # bytes after which the connection ends
    pause: int | None = None  # bytes after which nothing comes until `FakeHub.release` is set
    redirect: str = ""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class FakeHub:
    """Repositories: name -> commit -> file -> bytes. `faults[file or "listing"]` are used up, one an answer."""

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    main: dict[str, str] = field(default_factory=dict)  # repo -> the commit of its default branch
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    requests: list[Request] = field(default_factory=list)
    listing: Callable[[dict[str, Any]], Any] = lambda answer: answer  # a last change to the listing
    heads: list[dict[str, Any]] = field(default_factory=list)  # what goes wrong with the next HEAD answers
    silent: list[str] = field(default_factory=list)  # beginnings of paths that get no answer
    paused: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def add(self, files: dict[str, bytes], repo: str = REPO, commit: str = COMMIT) -> None:
        self.repos.setdefault(repo, {})[commit] = files
        self.main[repo] = commit

    repo = REPO
    fetched = tuple(FETCHED)

    def add_tiny(self, weight_bytes: int = 100_000, *, seed: int = 0, repo: str = REPO, commit: str = COMMIT) -> None:
        """A repository of a small model."""
        self.add(tiny_files(weight_bytes, seed), repo, commit)

    def fail(self, name: str, times: int = 1, **fault: Any) -> None:
        """Let the next answers about a file (or about "listing") go wrong."""
        self.faults[name] += [Fault(**fault)] * times

    def gets(self, name: str) -> list[Request]:
        """The GET requests for one file."""
        return [r for r in self.requests if r.method == "GET" and unquote(r.path).endswith(name)]

    @property
    def files(self) -> dict[str, bytes]:
        """What the default branch of the first repository holds."""
        return self.repos[REPO][self.main[REPO]]

    @property
    def weights(self) -> bytes:
        return self.files["model.safetensors"]


def tiny_files(weight_bytes: int = 100_000, seed: int = 0) -> dict[str, bytes]:
    """What a repository of a small model holds, with much that must not be fetched."""
    return {
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "README.md": b"# tiny\n",
        "LICENSE": b"Apache-2.0\n",
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"model_max_length": 128}',
        "vocab.json": b"{}",
        "merges.txt": b"",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": noise(weight_bytes, seed),
        "pytorch_model.bin": b"\x80\x04pickle",
        "modeling_tiny.py": b"raise SystemExit('code of a repository ran')",
        "onnx/model.onnx": b"onnx",
    }


def noise(count: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat."""
    return hashlib.shake_256(str(seed).encode()).digest(count)


def is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin"))


def etag_of(name: str, body: bytes) -> str:
    """The name of a file's content on Hugging Face: sha256 in LFS, git's blob id elsewhere."""
    if is_lfs(name):
        return hashlib.sha256(body).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append(Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.path.startswith(tuple(self.hub.silent)):
            self.hub.release.wait(20)
            return
        url = urlsplit(self.path)
        parts, query = unquote(url.path).strip("/").split("/"), parse_qs(url.query)
        if parts[:2] == ["api", "models"] and "revision" in parts:
            self.hugging_face_listing(f"{parts[2]}/{parts[3]}", unquote(url.path.split("/revision/")[1]))
        elif parts[:3] == ["api", "v1", "models"] and parts[-1] == "files":
            self.modelscope_listing(f"{parts[3]}/{parts[4]}")
        elif parts[:3] == ["api", "v1", "models"]:
            repo = f"{parts[3]}/{parts[4]}"
            self.file(repo, self.hub.main.get(repo, ""), query["FilePath"][0], {})
        elif parts[0] == "elsewhere":
            self.file(f"{parts[1]}/{parts[2]}", parts[4], "/".join(parts[5:]), {})
        elif parts[0] == "api":
            self.answer(404, b"{}", {}, Fault())
        else:
            repo = f"{parts[0]}/{parts[1]}"
            commit = self.hub.main.get(repo, "") if parts[3] == "main" else parts[3]
            self.file(repo, commit, "/".join(parts[4:]), {"X-Repo-Commit": commit})

    def hugging_face_listing(self, repo: str, revision: str) -> None:
        commit = revision if revision in self.hub.repos.get(repo, {}) else self.hub.main.get(repo, "")
        if not commit or (revision not in ("main", commit)):
            code = "RevisionNotFound" if commit else "RepoNotFound"
            self.answer(404, b"{}", {"X-Error-Code": code}, self.fault("listing"))
            return
        siblings: list[dict[str, Any]] = []
        for name, body in self.hub.repos[repo][commit].items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": etag_of("", body)}
            if is_lfs(name):
                sibling["lfs"] = {"sha256": etag_of(name, body), "size": len(body), "pointerSize": 134}
            siblings.append(sibling)
        answer = self.hub.listing({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings})
        self.answer(200, json.dumps(answer).encode(), {}, self.fault("listing"))

    def modelscope_listing(self, repo: str) -> None:
        if repo not in self.hub.main:
            self.answer(404, b'{"Code": 10010205001, "Message": "not found"}', {}, self.fault("listing"))
            return
        files = [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(body), "Sha256": hashlib.sha256(body).hexdigest()}
            for name, body in self.hub.repos[repo][self.hub.main[repo]].items()
        ]
        files.append({"Path": "onnx", "Name": "onnx", "Type": "tree", "Size": 0, "Sha256": ""})
        answer = self.hub.listing({"Code": 200, "Success": True, "Data": {"Files": files}})
        self.answer(200, json.dumps(answer).encode(), {}, self.fault("listing"))

    def file(self, repo: str, commit: str, name: str, headers: dict[str, str]) -> None:
        body = self.hub.repos.get(repo, {}).get(commit, {}).get(name)
        if body is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"}, Fault())
            return
        if self.command == "HEAD":
            fault = Fault(**self.hub.heads.pop(0)) if self.hub.heads else Fault()
        else:
            fault = self.fault(name)
        etag = etag_of(name, body)
        linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(body))} if is_lfs(name) else {}
        headers = {**headers, **linked, "ETag": f'"{etag}"'}
        status, wanted = 200, self.headers.get("Range")
        if wanted and not fault.ignore_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        if fault.redirect:
            status, body, headers["Location"] = 302, b"", f"{fault.redirect}/elsewhere{self.path}"
        self.answer(status, body, headers, fault)

    def fault(self, name: str) -> Fault:
        waiting = self.hub.faults[name]
        return waiting.pop(0) if waiting else Fault()

    def answer(self, status: int, body: bytes, headers: dict[str, str], fault: Fault) -> None:
        body = body if fault.body is None else fault.body
        self.send_response(fault.status or status)
        for key, value in {"Content-Length": str(len(body)), **headers, **fault.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[: fault.cut]
        if fault.pause is not None:
            self.wfile.write(body[: fault.pause])
            self.hub.paused.set()
            self.hub.release.wait(20)
            body = body[fault.pause :]
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these tests hang up, or are killed, in mid-answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def make_hub() -> Iterator[Callable[[], FakeHub]]:
    """Starts hubs, each on its own port."""
    running: list[tuple[Server, FakeHub]] = []

    def start() -> FakeHub:
        hub = FakeHub()
        server = Server(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append((server, hub))
        return hub

    yield start
    for server, hub in running:
        hub.release.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(make_hub: Callable[[], FakeHub]) -> FakeHub:
    """One hub with one small model in it."""
    hub = make_hub()
    hub.add_tiny()
    return hub


@pytest.fixture(scope="session")
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates to trust: a single one, because reading the usual 150 is what takes longest in many tests."""
    import certifi

    end = "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("tls") / "one.pem"
    file.write_text(Path(certifi.where()).read_text(encoding="utf-8").split(end)[0] + end)
    return file


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, one_certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches below tmp_path, no tokens, short time limits, no proxies: nothing of the machine's own."""
    from huggingface_hub import constants

    for variable in list(os.environ):
        if variable.startswith(("HF_", "MODELSCOPE_", "PIP_")) or variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    for variable in ("TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(one_certificate))
    monkeypatch.setenv("QWILL_HOME", str(tmp_path / "qwill"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "2")
    # huggingface_hub reads its variables when it is imported, which is before any test.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture(autouse=True)
def no_other_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every name that is looked up; anything but the loopback fails the test, even when the code copes with it."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        asked.append(name)
        if name not in ("127.0.0.1", "localhost"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    others = set(asked) - {"127.0.0.1", "localhost"}
    assert not others, f"the network was used: {others}"


class Recorder:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.total = self.done = self.resumed = 0
        self.items: list[str] = []
        self.messages: list[str] = []
        self.finished = 0

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        self.total, self.label, self.done, self.resumed, self.unit = total, label, resumed, resumed, unit

    def advance(self, count: int, item: str = "") -> None:
        self.done += count
        if item not in self.items[-1:]:
            self.items.append(item)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def progress() -> Recorder:
    return Recorder()
