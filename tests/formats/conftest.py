"""Builders of small checkpoint files whose every field a test can spoil; the builders use nothing of qwill."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import QwillError
from qwill.formats import open_checkpoint

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def text(value: bytes | str) -> bytes:
    """A GGUF string: 64-bit length, then the bytes."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


@dataclass
class Tensor:
    """An entry of the tensor list. `dims` in the file's order: innermost first. `offset` None: where it belongs."""

    name: bytes
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class GGUF:
    """A GGUF file in parts; `build` puts them together."""

    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    keys: list[bytes] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    alignment: int = 32
    tail: bytes = b""

    def key(self, name: bytes | str, kind: int, value: bytes) -> GGUF:
        self.keys.append(text(name) + struct.pack("<I", kind) + value)
        return self

    def strings(self, name: str, values: list[str]) -> GGUF:
        body = b"".join(text(value) for value in values)
        return self.key(name, ARRAY, struct.pack("<IQ", STRING, len(values)) + body)

    def tensor(self, name: bytes, dims: list[int], kind: int, data: bytes, **spoiled: int) -> GGUF:
        self.tensors.append(Tensor(name, dims, kind, data, **spoiled))
        return self

    def build(self) -> bytes:
        infos, data = b"", b""
        for t in self.tensors:
            offset = len(data) if t.offset is None else t.offset
            n_dims = len(t.dims) if t.n_dims is None else t.n_dims
            infos += text(t.name) + struct.pack(f"<I{len(t.dims)}Q", n_dims, *t.dims)
            infos += struct.pack("<IQ", t.kind, offset)
            data += t.data + bytes(-len(t.data) % self.alignment)
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.keys) if self.key_count is None else self.key_count,
        )
        head = self.magic + struct.pack("<IQQ", self.version, *counts) + b"".join(self.keys) + infos
        return head + bytes(-len(head) % self.alignment) + data + self.tail

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path


def small_gguf() -> GGUF:
    """Valid: a few keys of several types, one F32, one Q8_0 and one Q4_K tensor."""
    file = GGUF()
    file.key("general.architecture", STRING, text("qwen3"))
    file.key("general.alignment", U32, struct.pack("<I", 32))
    file.key("qwen3.block_count", U32, struct.pack("<I", 2))
    file.key("qwen3.rope.freq_base", F32, struct.pack("<f", 1e6))
    file.key("tokenizer.ggml.add_bos_token", BOOL, b"\0")
    file.strings("tokenizer.ggml.tokens", ["a", "b", "", "你好", "<|im_end|>"])
    file.key("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ5i", I32, 5, 1, 1, 1, 1, 3))
    file.tensor(b"norm.weight", [5], 0, struct.pack("<5f", 1, 2, 3, 4, 5))
    file.tensor(b"a.weight", [32, 2], 8, bytes(range(68)))
    file.tensor(b"b.weight", [256], 12, bytes(144))
    return file


def safetensors_bytes(header: Any, data: bytes, *, length: int | None = None) -> bytes:
    """A safetensors file from a header (an object, or ready bytes) and the tensors' data."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def small_header() -> dict[str, Any]:
    """Valid with 40 bytes of data."""
    return {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b.weight": {"dtype": "F32", "shape": [7], "data_offsets": [12, 40]},
        "empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [40, 40]},
    }


@pytest.fixture
def new_gguf() -> type[GGUF]:
    """The builder's class; `new_gguf()` is a file without keys and tensors."""
    return GGUF


@pytest.fixture
def gguf_file() -> GGUF:
    """A valid small file, to be spoiled."""
    return small_gguf()


@pytest.fixture(scope="session")
def valid_gguf() -> bytes:
    """A valid small GGUF file."""
    return small_gguf().build()


@pytest.fixture(scope="session")
def valid_safetensors() -> bytes:
    """A valid small safetensors file."""
    return safetensors_bytes(small_header(), bytes(range(40)))


@pytest.fixture(scope="session")
def is_refused(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., QwillError]:
    """Asserts that opening a file of these bytes raises a typed error in < 100 ms of work and < 2 MiB; returns it."""
    folder = tmp_path_factory.mktemp("refused")

    def check(data: bytes, suffix: str = ".gguf", *, seconds: float = 0.1) -> QwillError:
        path = folder / f"x{suffix}"
        path.write_bytes(data)
        times = []
        while len(times) < 3 and min(times, default=seconds) >= seconds:  # a busy machine may need a second try
            start = time.process_time()
            with pytest.raises(QwillError) as caught:
                open_checkpoint(path)
            times.append(time.process_time() - start)
        assert min(times) < seconds
        tracemalloc.start()
        try:
            with pytest.raises(QwillError):
                open_checkpoint(path)
            assert tracemalloc.get_traced_memory()[1] < 2**21
        finally:
            tracemalloc.stop()
        return caught.value

    return check


@pytest.fixture
def header() -> dict[str, Any]:
    """A valid safetensors header, to be spoiled; its data is 40 bytes."""
    return small_header()


@pytest.fixture
def write_safetensors(tmp_path: Path) -> Callable[..., Path]:
    """Writes `safetensors_bytes` to a file of this test."""

    def write(header: Any, data: bytes = bytes(40), *, name: str = "model.safetensors", **more: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(safetensors_bytes(header, data, **more))
        return path

    return write
