"""What people type, and what it is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.errors import ModelNotFoundError, QwillError, UsageError
from qwill.hub.catalog import CATALOG
from qwill.hub.names import nearest, parse_name


@pytest.mark.parametrize("text", ["qwen3-0.6b", "Qwen3-0.6B", "QWEN3-0.6B"])
def test_a_catalog_name_in_any_case(text: str) -> None:
    name = parse_name(text)
    assert name.entry is CATALOG["qwen3-0.6b"]
    assert (name.repo_on("huggingface"), name.repo_on("modelscope"), name.title) == (
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-0.6B",
        "qwen3-0.6b",
    )


def test_a_catalog_entry_brings_its_type_and_can_be_given_another() -> None:
    assert parse_name("smollm2-135m").quant == "Q4_1"
    other = parse_name("smollm2-135m:Q8_0")
    assert (other.quant, other.title) == ("Q8_0", "smollm2-135m:Q8_0")
    assert parse_name("smollm2-135m").repo_on("modelscope") is None


@pytest.mark.parametrize(
    ("text", "repo", "revision", "quant"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, None),
        ("Qwen/Qwen3-0.6B@main", "Qwen/Qwen3-0.6B", "main", None),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1", None),
        ("a_b/c.d-e:Q4_K_M", "a_b/c.d-e", None, "Q4_K_M"),
        ("a/b:q4_k_m@v1.0", "a/b", "v1.0", "q4_k_m"),
        ("a/b@v1.0:F16", "a/b", "v1.0", "F16"),
    ],
)
def test_a_repository(text: str, repo: str, revision: str | None, quant: str | None) -> None:
    name = parse_name(text)
    assert (name.repo, name.revision, name.quant, name.path) == (repo, revision, quant, None)


def test_the_revision_can_be_given_apart() -> None:
    assert parse_name("a/b", revision="v1").revision == "v1"
    assert parse_name("a/b@v1", revision="v1").revision == "v1"
    with pytest.raises(UsageError, match="two revisions"):
        parse_name("a/b@v1", revision="v2")


@pytest.mark.parametrize("text", ["./x", "../x", "/x", "~/x", ".", "x.gguf", "a/b/c.gguf", "C:\\models\\x", "sub\\x"])
def test_a_path(text: str) -> None:
    assert parse_name(text).path == Path(text).expanduser()


def test_a_folder_that_looks_like_a_repository_is_taken_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_name("org/name").path is None  # an empty folder is no model
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert parse_name("org/name").path == Path("org/name")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [("qwen3-0.6", "qwen3-0.6b"), ("qwen3:0.6b", "qwen3-0.6b"), ("smolm2-135m", "smollm2-135m"), ("qwen3", "qwen3-")],
)
def test_a_near_miss_is_suggested(text: str, suggestion: str) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        parse_name(text)
    assert suggestion in error.value.hint


def test_models_that_are_here_are_suggested_too() -> None:
    with pytest.raises(ModelNotFoundError) as error:
        parse_name("my-model", known=["acme/my-modell"])
    assert "acme/my-modell" in error.value.hint


@pytest.mark.parametrize("text", ["", "  ", "a\0b"])
def test_nothing_is_no_name(text: str) -> None:
    with pytest.raises(UsageError):
        parse_name(text)


@pytest.mark.parametrize(
    "text",
    ["a/b/c", "a/..", "a--b/c", "-a/b", "a/b.", "a b/c", "https://hub.invalid/a/b", "a/b?x", "gpt2", "a/" + "b" * 97],
)
def test_what_cannot_be_a_repository_is_refused_without_a_request(text: str) -> None:
    with pytest.raises(QwillError):
        parse_name(text)


@pytest.mark.parametrize("text", ["a/b@", "a/b@../x", "a/b@-x", "a/b@a..b", "a/b@x y", "a/b:", "a/b:../x", "a/b:Q4:Q8"])
def test_a_malformed_revision_or_type_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_name(text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_understood_or_refused_with_a_typed_error(text: str) -> None:
    try:
        name = parse_name(text)
    except QwillError:
        return
    assert name.path is not None or name.entry is not None or name.repo is not None
    for part in (name.repo, name.revision, name.quant):
        assert part is None or (".." not in part and not part.startswith("/") and "\\" not in part)


def test_nearest_ignores_case_and_keeps_the_order_of_likeness() -> None:
    assert nearest("QWEN/QWEN3-0.6B", ["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "x"])[0] == "Qwen/Qwen3-0.6B"
    assert nearest("zzz", ["abc"]) == []
