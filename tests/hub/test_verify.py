"""verify: a good model has no findings; each kind of damage is found, and named by file, tensor and offset."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.checkpoint_names import expected_tensors
from qwill.config import config_from_json
from qwill.formats import open_checkpoint
from qwill.hub.verify import VerifyReport, verify

Arrays = dict[str, np.ndarray]
Q, NORM, EMBEDDING = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight", "model.embed_tokens.weight"
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Qwen3 in float16."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(0)
    shapes = expected_tensors(config_from_json(folder))
    arrays = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "empty.txt").touch()
    return folder


@pytest.fixture
def model(good_model: Path, tmp_path: Path) -> Path:
    """A copy of the good model, to be damaged."""
    return Path(shutil.copytree(good_model, tmp_path / "model"))


@pytest.fixture
def change(model: Path) -> Callable[..., Path]:
    """Changes the model's arrays: `change(lambda arrays: …)`; returns the file."""

    def rewrite(edit: Callable[[Arrays], object]) -> Path:
        file = model / "model.safetensors"
        arrays = {name: array.copy() for name, array in safetensors.numpy.load_file(file).items()}
        edit(arrays)
        safetensors.numpy.save_file(arrays, file)
        return file

    return rewrite


def only(report: VerifyReport, level: str = "error") -> tuple[str, str]:
    """The report's one finding."""
    assert [finding.level for finding in report.findings] == [level], report.findings
    return report.findings[0].what, report.findings[0].where


def offset_of(path: Path, tensor: str) -> int:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.tensors[tensor].offset


def test_good_model_has_no_findings_and_every_byte_was_read(good_model: Path) -> None:
    report = verify(good_model)
    assert report.findings == []
    assert report.ok
    assert report.bytes_read == sum(file.stat().st_size for file in good_model.iterdir())
    assert (report.files, report.hashed, report.tensors) == (3, 0, report.scanned)


def test_without_full_only_headers_are_read(model: Path, change: Any) -> None:
    change(lambda a: a[Q].fill(np.nan))
    report = verify(model, full=False)
    assert (report.ok, report.bytes_read, report.scanned) == (True, 0, 0)
    assert not verify(model).ok


def test_single_file_is_verified_with_the_config_beside_it(model: Path) -> None:
    report = verify(model / "model.safetensors")
    assert (report.findings, report.files) == ([], 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_bad_value_is_named_by_tensor_and_offset(model: Path, change: Any, bad: float) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays[Q].flat[[77, 5000]] = bad

    file = change(spoil)
    what, where = only(verify(model))
    assert "2 of 8192 values are not finite" in what
    at = offset_of(file, Q) + 2 * 77
    assert where == f"{file}, tensor {Q}, offset {at} (the first such value)"
    assert np.frombuffer(file.read_bytes()[at : at + 2], np.float16)[0] == pytest.approx(bad, nan_ok=True)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 0x7F800001), (np.float16, 0x7C01)])
def test_signalling_nan_is_found_and_signals_nothing(model: Path, change: Any, dtype: type, bits: int) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays[Q] = arrays[Q].astype(dtype)
        arrays[Q].view(f"uint{8 * arrays[Q].itemsize}").flat[5] = bits

    change(spoil)
    assert "1 of 8192 values are not finite" in only(verify(model))[0]


def test_bad_value_in_a_late_piece_is_found(model: Path, change: Any) -> None:
    rows = 5000  # more than two pieces

    def spoil(arrays: Arrays) -> None:
        arrays[EMBEDDING] = np.ones((rows, 64), np.float16)
        arrays[EMBEDDING][rows - 1, 63] = np.inf

    file = change(spoil)
    (model / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": rows}))
    assert f"offset {offset_of(file, EMBEDDING) + 2 * (rows * 64 - 1)} " in only(verify(model))[1]


def test_bad_scale_of_a_quantized_block_is_named_by_the_blocks_offset(tmp_path: Path, write_gguf: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert verify(path).findings == []
    data = bytearray(path.read_bytes())
    at = offset_of(path, "blk.1.attn_q.weight") + 34 * 5
    data[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    what, where = only(verify(path))
    assert "of 8192 values are not finite" in what
    assert where == f"{path}, tensor blk.1.attn_q.weight, offset {at} (the first such block)"


@pytest.fixture
def write_gguf(good_model: Path) -> Callable[[Path], Path]:
    """Writes the good model as GGUF, its matrices in Q8_0."""
    names = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
    }  # fmt: skip

    def write(path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "qwen3")
        writer.add_context_length(128)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(128)
        writer.add_block_count(2)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_key_length(32)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e6)
        for name, array in safetensors.numpy.load_file(good_model / "model.safetensors").items():
            for theirs, ours in names.items():
                name = name.replace(f"{theirs}.weight", f"{ours}.weight")
            name, values = name.replace("model.layers.", "blk."), array.astype(np.float32)
            if values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def test_missing_unused_and_wrong_tensors_are_each_listed(model: Path, change: Any) -> None:
    def spoil(arrays: Arrays) -> None:
        del arrays[NORM]
        arrays["model.extra.weight"] = np.ones(3, np.float16)
        arrays[Q] = np.ascontiguousarray(arrays[Q][:-1])

    change(spoil)
    findings = [finding.what for finding in verify(model).findings]
    assert findings == [
        f"1 tensors are missing: {NORM}",
        f"1 tensors are of the wrong shape: {Q} is [127, 64], not [128, 64]",
        "1 tensors are not used by the model: model.extra.weight",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_second_copy_of_a_tied_head_must_be_the_embedding(model: Path, change: Any, same: bool) -> None:
    def add(arrays: Arrays) -> None:
        arrays["lm_head.weight"] = arrays[EMBEDDING].copy()
        arrays["lm_head.weight"][-1, -1] += 0 if same else 1

    change(add)
    report = verify(model)
    assert report.ok == same
    if not same:
        assert f"tied to {EMBEDDING}, but differs" in only(report)[0]


def test_matrix_of_zeros_is_a_warning(model: Path, change: Any) -> None:
    change(lambda arrays: [arrays[Q].fill(0), arrays[NORM].fill(0)])
    report = verify(model)
    what, where = only(report, "warning")
    assert (what, report.ok) == ("every value is zero", True)
    assert Q in where


def test_values_of_a_type_that_cannot_be_decoded_are_a_warning(model: Path, change: Any) -> None:
    change(lambda arrays: arrays.update({NORM: np.ones(64, np.int64)}))
    assert "values of type I64 were not looked at" in only(verify(model), "warning")[0]


def test_promised_size_and_hash_are_compared(model: Path) -> None:
    data = (model / "model.safetensors").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    report = verify(model, expected={"model.safetensors": (len(data), digest)})
    assert (report.ok, report.hashed) == (True, 1)
    report = verify(model, expected={"model.safetensors": (len(data) + 1, "0" * 64), "tokenizer.json": (1, "0" * 64)})
    findings = {finding.what: finding.where for finding in report.findings}
    assert findings == {
        f"the file has {len(data)} bytes, not {len(data) + 1}": str(model / "model.safetensors"),
        "the file is missing": str(model / "tokenizer.json"),
        f"the sha256 is {digest}, not {'0' * 64}": str(model / "model.safetensors"),
    }


@pytest.fixture
def cached(model: Path, tmp_path: Path) -> Path:
    """The model in the layout of the hub's cache: the weights named by sha256, the small files by git's sha1."""
    repository = tmp_path / "models--acme--tiny"
    snapshot = repository / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in model.iterdir():
        data = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        name = hashlib.sha256(data).hexdigest() if file.suffix == ".safetensors" else git
        (repository / "blobs" / name).write_bytes(data)
        (snapshot / file.name).symlink_to(f"../../blobs/{name}")
    return snapshot


def test_hashes_are_known_from_the_hubs_cache(cached: Path) -> None:
    report = verify(cached)
    assert (report.findings, report.hashed, report.files) == ([], 3, 3)


@pytest.mark.parametrize(("name", "kind"), [("model.safetensors", "sha256"), ("empty.txt", "git hash")])
def test_one_other_byte_in_the_cache_is_found(cached: Path, name: str, kind: str) -> None:
    blob = (cached / name).resolve()
    data = bytearray(blob.read_bytes() or b"\0")
    data[-1] ^= 1  # the last bit of a value: still a sane number
    blob.write_bytes(data)
    what, where = only(verify(cached))
    assert what.startswith(f"the {kind} is ")
    assert what.endswith(f"not {blob.name}")
    assert where == str(cached / name)


def test_blob_that_repositories_share_is_hashed_under_the_repositorys_name(cached: Path) -> None:
    blob = (cached / "model.safetensors").resolve()
    shared = cached.parents[2] / "blobs" / "ab" / ("ab" * 32)  # named by another kind of hash
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(f"../../blobs/ab/{shared.name}")
    assert (verify(cached).findings, verify(cached).hashed) == ([], 3)


def test_broken_link_and_link_out_of_the_folder_are_found(model: Path) -> None:
    (model / "tokenizer.json").symlink_to("gone")
    (model / "vocab.json").symlink_to("/etc/passwd")
    assert {finding.what for finding in verify(model).findings} == {
        "the link leads to no file",
        "the file is a link that leads out of the model's folder",
    }


def test_truncated_header_and_data_are_found_and_hashes_still_compared(model: Path) -> None:
    file = model / "model.safetensors"
    data = file.read_bytes()
    for size in (0, 5, 100, len(data) - 1):
        file.write_bytes(data[:size])
        report = verify(model, expected={file.name: (len(data), hashlib.sha256(data).hexdigest())})
        whats = " ".join(finding.what for finding in report.findings)
        assert f"the file has {size} bytes, not {len(data)}" in whats
        assert "the sha256 is" in whats
        assert len(report.findings) == 3  # and what the reader says


@pytest.mark.parametrize("content", [b"", b"{", b'{"model_type": "gpt2"}', b"[]", b'{"model_type": "qwen3"}'])
def test_bad_config_is_found(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    report = verify(model)
    assert len(report.findings) == 1
    assert report.scanned == report.tensors


@pytest.mark.parametrize("name", ["gone", "gone.gguf", "."])
def test_nothing_there_is_a_finding(tmp_path: Path, name: str) -> None:
    report = verify(tmp_path / name)
    assert not report.ok
    assert report.files == 0


def test_pickled_weights_are_found_and_not_opened(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "has no model.safetensors" in only(verify(model))[0]


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_flipped_bytes_never_raise(
    good_model: Path, tmp_path_factory: pytest.TempPathFactory, where: float, value: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    shutil.copytree(good_model, folder, dirs_exist_ok=True)
    for file in folder.iterdir():
        data = bytearray(file.read_bytes() or b"\0")
        data[int(where * min(len(data), 3000))] = value
        file.write_bytes(data)
    assert isinstance(verify(folder).ok, bool)


class Recorder:
    """Progress that adds up."""

    def __init__(self) -> None:
        self.total, self.done, self.finished = -1, 0, 0

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        self.total = total

    def advance(self, count: int, item: str = "") -> None:
        self.done += count

    def message(self, text: str) -> None:
        raise AssertionError(text)

    def finish(self) -> None:
        self.finished += 1


def test_progress_counts_every_byte(good_model: Path) -> None:
    progress = Recorder()
    report = verify(good_model, progress=progress)
    assert progress.total == progress.done == report.bytes_read
    assert progress.finished == 1


@pytest.mark.weights
def test_real_weights_are_good(smollm2_gguf: Path) -> None:
    report = verify(smollm2_gguf)
    assert (report.findings, report.scanned) == ([], 272)
