"""Conversations on disk: private, whole or not at all, and moved aside when damaged."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill.cli.sessions import load_session, save_session, session_names
from qwill.errors import FormatError, UsageError

texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), texts), max_size=6))
def test_what_was_saved_is_loaded(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in pairs]
    path = save_session(tmp_path / "sessions", "x", messages)
    assert load_session(tmp_path / "sessions", "x") == messages
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] == messages


def test_files_are_readable_by_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    before = os.umask(0)
    try:
        path = save_session(folder, "x", [])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "..", ".x", "a/b", "../x", "a\x00b", "x" * 65, "a b", "-x", "𝒳" * 60])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        save_session(tmp_path, name, [])
    with pytest.raises(UsageError):
        load_session(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        b"not json\n",
        b'{"role": "user", "content": "cut',
        b'{"role": "root", "content": "x"}\n',
        b'{"role": "user", "content": 3}\n',
        b'["user", "x"]\n',
        b"\xff\xfe\n",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_moved_aside_and_said_so(tmp_path: Path, damage: bytes) -> None:
    path = save_session(tmp_path, "x", [{"role": "user", "content": "hi"}])
    path.write_bytes(path.read_bytes() + damage)
    with pytest.raises(FormatError, match="damaged") as refused:
        load_session(tmp_path, "x")
    assert "x.jsonl.bad" in refused.value.hint
    assert not path.exists()
    assert path.with_name("x.jsonl.bad").read_bytes().endswith(damage)
    assert session_names(tmp_path) == []


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    save_session(tmp_path, "old", [])
    with pytest.raises(UsageError) as refused:
        load_session(tmp_path, "new")
    assert "old" in refused.value.hint


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    save_session(tmp_path, "x", [{"role": "user", "content": "old"}])
    with pytest.raises(TypeError):
        save_session(tmp_path, "x", [{"role": "user", "content": object()}])
    assert load_session(tmp_path, "x") == [{"role": "user", "content": "old"}]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_does_not_exist_has_no_names(tmp_path: Path) -> None:
    assert session_names(tmp_path / "none") == []


def test_a_link_that_leads_nowhere_has_no_name(tmp_path: Path) -> None:
    save_session(tmp_path, "x", [])
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    assert session_names(tmp_path) == ["x"]


def test_what_is_no_text_is_saved_and_loaded_as_text(tmp_path: Path) -> None:
    save_session(tmp_path, "x", [{"role": "user", "content": "a\udc80b 好 𝒳"}])
    assert load_session(tmp_path, "x") == [{"role": "user", "content": "a\ufffdb 好 𝒳"}]


def test_trouble_with_the_folder_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_session(tmp_path, "x", []).write_bytes(b"damaged")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FormatError, match="Permission denied"):
        load_session(tmp_path, "x")
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(FormatError, match="Permission denied"):
        load_session(tmp_path, "x")
