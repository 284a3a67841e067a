"""Report: names of sections, the file that is whole or not there, and the summary for a notebook."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from qwill.errors import SettingError
from qwill.report import SECTIONS, About, Report


def test_a_section_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="no section 'atention'"):
        Report(About("m", "p"), {"atention": {}})


def test_every_section_has_its_place_on_the_page_and_says_why_it_is_empty() -> None:
    page = Report(About("m", "p"), {}, missing={"attention": "it was left out."}).html()
    for name, title in SECTIONS.items():
        assert f'id="panel-{name}"' in page
        assert re.search(rf'id="tab-{name}"[^>]*>{title}<', page)
    assert '"attention":"it was left out."' in page
    assert '"tokens":"it was not captured."' in page


def test_a_saved_report_is_the_page_and_can_be_read_as_other_files_can(hostile_report: Report, tmp_path: Path) -> None:
    path = tmp_path / "new folder/report.html"
    assert hostile_report.save(path) == path.stat().st_size
    assert path.read_bytes() == hostile_report.html().encode()
    (tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_the_same_report_is_the_same_file(hostile_report: Report) -> None:
    assert hostile_report.html() == hostile_report.html()


def test_a_report_that_cannot_be_written_leaves_nothing_behind(
    hostile_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        hostile_report.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "the old one"


def test_the_summary_in_a_notebook_is_escaped(hostile_report: Report) -> None:
    summary = hostile_report._repr_html_()
    assert "<img" not in summary
    assert "<script" not in summary
    assert "&lt;img src=x" in summary
    assert "&lt;U+202E&gt;" in summary
    assert "Logit lens" in summary
