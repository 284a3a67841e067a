"""One file over a bad line: what ends up under its name is whole and right, or nothing is there."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import DiskSpaceError, DownloadError, IntegrityError, ModelNotFoundError, QwillError
from qwill.hub import resolve
from qwill.hub.files import RemoteFile
from qwill.hub.http import HttpClient
from qwill.hub.transfer import download, partial_of, partial_size

WEIGHTS = "model.safetensors"
PULL = "import sys; from qwill.hub import pull; print(pull(sys.argv[1], source='huggingface').path)"


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def get(hub: Any, progress: Any = None) -> Any:
    return resolve(hub.repo, source="huggingface", endpoint=hub.url, progress=progress)


def blob_of(hub: Any, caches: Path) -> Path:
    folder = caches / "hf" / ("models--" + hub.repo.replace("/", "--"))
    return folder / "blobs" / hashlib.sha256(hub.weights).hexdigest()


def leave_partial(hub: Any, caches: Path, content: bytes) -> None:
    partial = partial_of(blob_of(hub, caches))
    partial.parent.mkdir(parents=True)
    partial.write_bytes(content)


def ranges(hub: Any) -> list[str | None]:
    return [request.headers.get("range") for request in hub.gets(WEIGHTS)]


def pull_in_another_process(hub: Any, caches: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_CACHE": str(caches / "hf"), "HF_ENDPOINT": hub.url}
    command = [sys.executable, "-c", PULL, hub.repo]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_partial_file_is_continued(hub: Any, caches: Path, progress: Any) -> None:
    leave_partial(hub, caches, hub.weights[:40_000])
    found = get(hub, progress)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert ranges(hub) == ["bytes=40000-"]
    assert progress.resumed == 40_000
    assert progress.done == progress.total == sum(len(hub.files[name]) for name in hub.fetched)
    assert progress.finished == 1


@pytest.mark.parametrize("kept", [0, 1, 99_999, 100_000, 100_001])
def test_partial_files_of_any_length_end_well(hub: Any, caches: Path, progress: Any, kept: int) -> None:
    leave_partial(hub, caches, (hub.weights + b"x")[:kept])
    found = get(hub, progress)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert progress.done == progress.total


def test_a_damaged_partial_file_is_fetched_anew(hub: Any, caches: Path, progress: Any) -> None:
    leave_partial(hub, caches, b"?" * 40_000)
    found = get(hub, progress)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert ranges(hub) == ["bytes=40000-", None]
    assert progress.done == progress.total


@pytest.mark.parametrize(
    "fault",
    [
        {"ignore_range": True},
        {"headers": {"Content-Range": "bytes 0-99999/100000"}},
        {"headers": {"Content-Range": "bytes 40000-99999/100001"}},
        {"headers": {"Content-Range": "nonsense"}},
        {"status": 416, "body": b""},
    ],
)
def test_a_wrong_answer_to_a_range_starts_again_from_zero(
    hub: Any, caches: Path, progress: Any, no_waiting: None, fault: dict[str, Any]
) -> None:
    leave_partial(hub, caches, hub.weights[:40_000])
    hub.fail(WEIGHTS, **fault)
    found = get(hub, progress)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert progress.done == progress.total


def test_a_short_body_is_continued(hub: Any, no_waiting: None) -> None:
    hub.fail(WEIGHTS, cut=30_000)
    found = get(hub)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert ranges(hub) == [None, "bytes=30000-"]


def test_a_connection_that_never_brings_more_ends_in_an_error_and_keeps_the_part(
    hub: Any, caches: Path, no_waiting: None
) -> None:
    hub.fail(WEIGHTS, cut=30_000)
    hub.fail(WEIGHTS, times=9, cut=0)
    with pytest.raises(DownloadError, match="lost"):
        get(hub)
    assert len(hub.gets(WEIGHTS)) <= 7
    assert partial_of(blob_of(hub, caches)).stat().st_size == 30_000
    assert not blob_of(hub, caches).exists()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"body": b"?" * 100_000}, r"another content[\s\S]*promised"),
        ({"body": b"?" * 99_999}, "has 99999 bytes"),
        ({"body": b"?" * 100_001}, "has 100001 bytes"),
        ({"body": b"?" * 100_001, "headers": {"Content-Length": "100000"}}, "another content|lost"),
        ({"headers": {"X-Linked-Etag": '"' + "f" * 64 + '"'}}, "changed on"),
        ({"headers": {"Content-Encoding": "gzip"}}, "compresses"),
    ],
)
def test_wrong_content_never_gets_the_name(
    hub: Any, caches: Path, no_waiting: None, fault: dict[str, Any], text: str
) -> None:
    hub.fail(WEIGHTS, times=6, **fault)
    with pytest.raises(DownloadError, match=text):
        get(hub)
    assert not blob_of(hub, caches).exists()
    assert not list((caches / "hf").rglob(WEIGHTS))
    hub.faults.clear()
    assert (get(hub).path / WEIGHTS).read_bytes() == hub.weights


def test_a_wrong_small_file_is_noticed_too(hub: Any) -> None:
    hub.fail("config.json", body=hub.files["config.json"].replace(b"64", b"65"))
    with pytest.raises(IntegrityError, match=r"config\.json arrived with another content"):
        get(hub)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(hub: Any, no_waiting: None, status: int) -> None:
    hub.fail(WEIGHTS, status=status, headers={"Retry-After": "0"}, body=b"")
    assert (get(hub).path / WEIGHTS).read_bytes() == hub.weights


def test_an_etag_of_another_kind_says_nothing(hub: Any) -> None:
    hub.fail("config.json", headers={"ETag": 'W/"1a-x"'})
    assert (get(hub).path / "config.json").read_bytes() == hub.files["config.json"]


def test_a_file_that_is_listed_but_absent_is_said(hub: Any) -> None:
    hub.fail(WEIGHTS, status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(DownloadError, match="does not have"):
        get(hub)


def test_a_server_that_falls_silent_is_given_up(
    hub: Any, caches: Path, no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")
    hub.fail(WEIGHTS, times=9, pause=50)
    with pytest.raises(QwillError, match="lost"):
        get(hub)
    assert partial_size(blob_of(hub, caches), RemoteFile(WEIGHTS, len(hub.weights), "", "")) > 0


def test_after_kill_9_the_next_run_goes_on(hub: Any, caches: Path, progress: Any) -> None:
    size = 3_000_000
    hub.add_tiny(size)
    for offset in (1, size // 2, size - 1):
        hub.release.clear()
        hub.fail(WEIGHTS, pause=offset - partial_size_of(hub, caches))
        process = pull_in_another_process(hub, caches)
        wait_for(lambda wanted=offset: partial_size_of(hub, caches) == wanted)
        os.kill(process.pid, signal.SIGKILL)
        assert process.communicate()[0] == ""
        hub.release.set()
        assert process.returncode == -signal.SIGKILL
        assert not blob_of(hub, caches).exists()
    found = get(hub, progress)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert ranges(hub) == [None, "bytes=1-", f"bytes={size // 2}-", f"bytes={size - 1}-"]
    assert progress.resumed >= size - 1
    assert not partial_of(blob_of(hub, caches)).exists()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def partial_size_of(hub: Any, caches: Path) -> int:
    return partial_size(blob_of(hub, caches), RemoteFile(WEIGHTS, len(hub.weights), "", ""))


def test_parts_that_were_given_up_are_swept(hub: Any, caches: Path) -> None:
    leave_partial(hub, caches, hub.weights[:10])
    blobs = blob_of(hub, caches).parent
    old, recent, foreign = (blobs / name for name in ("x.qwill.incomplete", "y.qwill.incomplete", "z.incomplete"))
    for path in (old, recent, foreign):
        path.write_bytes(b"1")
    for path in (old, foreign):
        os.utime(path, (time.time() - 8 * 24 * 3600,) * 2)
    get(hub)
    assert (old.exists(), recent.exists(), foreign.exists()) == (False, True, True)


def test_four_processes_share_one_download(hub: Any, caches: Path) -> None:
    hub.add_tiny(1_000_000)
    hub.fail(WEIGHTS, pause=500_000)
    processes = [pull_in_another_process(hub, caches) for _ in range(4)]
    assert hub.paused.wait(30)
    hub.release.set()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len({path for path, _ in outputs}) == 1
    assert (Path(outputs[0][0].strip()) / WEIGHTS).read_bytes() == hub.weights
    assert {name: len(hub.gets("/" + name)) for name in hub.fetched} == dict.fromkeys(hub.fetched, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs is refused: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hf"))


def test_too_small_a_disk_is_refused_before_the_first_byte(
    hub: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(small_disk, monkeypatch)
    hub.add_tiny(6_000_000)
    with pytest.raises(DiskSpaceError, match=r"needs 6\.0 MB, but only 4\.2 MB are free") as error:
        get(hub)
    assert str(small_disk) in error.value.where
    assert len(hub.requests) == 1


def test_a_disk_that_becomes_full_keeps_the_part(hub: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk(small_disk, monkeypatch)
    hub.add_tiny(3_000_000)
    filler = small_disk / "filler"
    hub.fail(WEIGHTS, pause=0)
    original = hub.release.wait

    def fill(timeout: float) -> bool:
        filler.write_bytes(bytes(2_000_000))
        return True

    hub.release.wait = fill
    with pytest.raises(DiskSpaceError, match="became full"):
        get(hub)
    hub.release.wait = original
    kept = partial_size_of(hub, small_disk)
    assert 0 < kept < 3_000_000
    filler.unlink()
    found = get(hub)
    assert (found.path / WEIGHTS).read_bytes() == hub.weights
    assert ranges(hub)[-1] == f"bytes={kept}-"


def test_an_empty_file_needs_no_request(hub: Any, caches: Path, progress: Any) -> None:
    empty = RemoteFile("merges.txt", 0, hashlib.sha256(b"").hexdigest(), hub.url)

    def refusal(response: Any) -> QwillError:
        return ModelNotFoundError("unused")

    with HttpClient(hub.url, secrets={}, home="https://hub.invalid", refusal=refusal) as client:
        download(client, empty, caches / "blob", lock=caches / "lock", progress=progress, told=0)
    assert (caches / "blob").read_bytes() == b""
    assert hub.requests == []
