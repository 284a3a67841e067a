"""The documentation builds as a site without a warning, its links lead somewhere, and it fetches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    assert site.build(folder) == 0
    return folder


@pytest.mark.slow
def test_the_site_builds_and_all_its_links_lead_somewhere(built: Path) -> None:
    assert site.check(built)[0] == []


@pytest.mark.slow
def test_every_page_of_the_documentation_is_a_page_of_the_site(built: Path) -> None:
    pages = [path.relative_to(site.ROOT).with_suffix(".html") for path in (site.ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (built / page).is_file()] == []


@pytest.mark.slow
def test_a_source_file_that_a_page_links_to_can_be_read_on_the_site(built: Path) -> None:
    text = (built / "qwill" / "models" / "qwen3.html").read_text(encoding="utf-8")
    assert "CausalLM" in text


@pytest.mark.slow
def test_the_side_bar_has_the_lists_of_the_front_page(built: Path) -> None:
    text = (built / "docs" / "index.html").read_text(encoding="utf-8")
    side = text[text.index("sidebar-tree") :]
    assert side.index("Read the code") < side.index("architecture.html") < side.index("Decisions")


def site_of(tmp_path: Path, **files: str) -> list[str]:
    """What is wrong with a site of these files, without the folder's name."""
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return [problem.removeprefix(f"{tmp_path}/") for problem in site.check(tmp_path)[0]]


@pytest.mark.parametrize("link", ["gone.html", "b.html#gone", "#gone", "../outside/a.html"])
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str) -> None:
    page = f'<h1 id="here">A</h1><a href="{link}">x</a>'
    assert site_of(tmp_path, a_html=page, b_html="<p id=there>") == [f"a.html: {link} leads nowhere"]


@pytest.mark.parametrize("link", ["b.html", "b.html#there", "#here", "a%2Ehtml", "https://example.org/x#y"])
def test_a_link_that_leads_somewhere_is_none(tmp_path: Path, link: str) -> None:
    page = f'<h1 id="here">A</h1><a href="{link}">x</a>'
    assert site_of(tmp_path, a_html=page, b_html="<p id=there>") == []


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/x.js"></script>',
        '<link rel="stylesheet" href="//example.org/x.css">',
        '<img src="https://example.org/x.png">',
    ],
)
def test_a_page_that_fetches_from_elsewhere_is_found(tmp_path: Path, page: str) -> None:
    (problem,) = site_of(tmp_path, a_html=page)
    assert "would be fetched" in problem


@pytest.mark.parametrize("style", ["@import 'https://example.org/x.css';", "a { src: url(//example.org/x.woff) }"])
def test_a_style_that_fetches_from_elsewhere_is_found(tmp_path: Path, style: str) -> None:
    (problem,) = site_of(tmp_path, a_css=style)
    assert "would be fetched" in problem


def test_a_build_with_a_warning_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "conf.py").write_text("extensions = ['myst_parser']\n")
    (tmp_path / "index.md").write_text("# A page\n\n[gone](gone.md)\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.build(tmp_path / "site") != 0
