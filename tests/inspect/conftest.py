"""Small and full-size models that consist of headers, and a hub on the loopback that serves parts of files.

The data of the weight files is a hole: it takes no room on the disk, and inspecting must never read it.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from rich.console import Console

from qwill.checkpoint_names import expected_tensors
from qwill.config import config_from_json

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8}

TINY = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
QWEN3_06B = TINY | {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """A .safetensors file with a true header and a hole for data."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + BYTES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


class Models:
    """Writes model folders below one folder."""

    tiny, qwen3_06b = TINY, QWEN3_06B

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
        config: Mapping[str, Any] = TINY,
        *,
        tensors: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
        change: Callable[[Tensors], object] = lambda tensors: None,
        shards: int = 1,
    ) -> Path:
        """A folder with config.json and weights: those the configuration asks for, unless `tensors` are given."""
        folder = self.root / f"model{len(list(self.root.iterdir()))}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if tensors is None:
            wanted = expected_tensors(config_from_json(folder))
            tensors = {name: ("BF16", shape) for name, shape in sorted(wanted.items())}
        tensors = dict(tensors)
        change(tensors)
        if shards == 1:
            write_safetensors(folder / "model.safetensors", tensors)
            return folder
        where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
        for file in set(where.values()):
            write_safetensors(folder / file, {name: t for name, t in tensors.items() if where[name] == file})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        return folder

    def gguf(self, dtypes: Mapping[str, str], *, unused_tokens: int = 0, name: str = "tiny.gguf") -> Path:
        """A one-layer-or-more GGUF of architecture qwen2; dtypes: tensor name -> type, F32 for all others."""
        import gguf
        import numpy as np

        path = self.root / name
        writer = gguf.GGUFWriter(path, "qwen2")
        writer.add_block_count(4)
        writer.add_context_length(512)
        writer.add_embedding_length(256)
        writer.add_feed_forward_length(512)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e4)
        writer.add_token_list([f"token{i}" for i in range(300)])
        writer.add_token_types([1] * (300 - unused_tokens) + [5] * unused_tokens)
        for tensor, shape in _gguf_shapes().items():
            kind = gguf.GGMLQuantizationType[dtypes.get(tensor, "F32")]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            data = np.zeros((*shape[:-1], shape[-1] // elements * size), dtype=np.uint8)
            writer.add_tensor(tensor, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _gguf_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (300, 256), "output_norm.weight": (256,)}
    for layer in range(4):
        block = {
            "attn_norm.weight": (256,),
            "attn_q.weight": (256, 256),
            "attn_q.bias": (256,),
            "attn_k.weight": (128, 256),
            "attn_k.bias": (128,),
            "attn_v.weight": (128, 256),
            "attn_v.bias": (128,),
            "attn_output.weight": (256, 256),
            "ffn_norm.weight": (256,),
            "ffn_gate.weight": (512, 256),
            "ffn_up.weight": (512, 256),
            "ffn_down.weight": (256, 512),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


@pytest.fixture
def models(tmp_path: Path) -> Models:
    """Writes models."""
    root = tmp_path / "models"
    root.mkdir()
    return Models(root)


@pytest.fixture(scope="session")
def shown() -> Callable[..., str]:
    """What is written to a console of `width` columns when `draw(console)` runs; plain unless `terminal`."""

    def text(draw: Callable[[Console], object], *, width: int = 80, terminal: bool = False) -> str:
        stream = io.StringIO()
        colours: Any = "standard" if terminal else None
        draw(Console(file=stream, width=width, force_terminal=terminal, color_system=colours))
        return stream.getvalue()

    return text


@dataclass
class FileHub:
    """Repositories: folders whose files are served in parts; `answers` are changed by the switches."""

    url: str = ""
    repos: dict[str, Path] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    sent: int = 0  # bytes of file bodies
    knows_range: bool = True
    content_range: str = ""  # a wrong one to send
    cut: int | None = None  # bytes after which the connection ends
    failures: list[int] = field(default_factory=list)  # statuses of the next answers about files
    sizes: dict[str, int] = field(default_factory=dict)  # file -> what the listing says instead


class Handler(BaseHTTPRequestHandler):
    hub: FileHub

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.hub.requests.append(self.path)
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        modelscope = parts[:3] == ["api", "v1", "models"]
        start = 3 if modelscope else 2 if parts[:2] == ["api", "models"] else 0
        folder = self.hub.repos.get("/".join(parts[start : start + 2]))
        if folder is None:
            self.answer(404, b"{}")
        elif modelscope and parts[-1] == "files":
            files = [{"Path": f.name, "Size": self.size(f), "Sha256": "0" * 64} for f in sorted(folder.iterdir())]
            self.answer(200, json.dumps({"Code": 200, "Data": {"Files": files}}).encode())
        elif modelscope:
            self.file(folder / parse_qs(url.query)["FilePath"][0])
        elif start:
            siblings = [
                {"rfilename": f.name, "size": self.size(f), "blobId": "0" * 40} for f in sorted(folder.iterdir())
            ]
            self.answer(200, json.dumps({"sha": "a" * 40, "siblings": siblings}).encode())
        else:
            self.file(folder / parts[4])

    def size(self, file: Path) -> int:
        return self.hub.sizes.get(file.name, file.stat().st_size)

    def file(self, file: Path) -> None:
        if self.hub.failures:
            self.answer(self.hub.failures.pop(0), b"")
            return
        size = file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2])) if wanted and self.hub.knows_range else (0, size - 1)
        self.send_response(206 if wanted and self.hub.knows_range else 200)
        self.send_header("Content-Length", str(last - first + 1))
        if wanted and self.hub.knows_range:
            self.send_header("Content-Range", self.hub.content_range or f"bytes {first}-{last}/{size}")
        self.end_headers()
        left = last - first + 1 if self.hub.cut is None else self.hub.cut
        with file.open("rb") as data:
            data.seek(first)
            while left and (chunk := data.read(min(left, 1 << 16))):
                self.wfile.write(chunk)
                self.hub.sent += len(chunk)
                left -= len(chunk)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up as soon as they have the header."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileHub]:
    """The only hub that can be reached: caches are empty, and the hubs' own addresses lead to a closed port."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MODELSCOPE_API_TOKEN", "MODELSCOPE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("QWILL_HOME", str(tmp_path / "qwill"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    hub = FileHub()
    server = Server(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield hub
    server.shutdown()
    server.server_close()
