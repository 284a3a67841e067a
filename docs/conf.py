"""The site: how Sphinx reads the same Markdown that GitHub shows. `make docs` builds it, by scripts/site.py.

The pages' paths are those of the repository, so a link between two pages is the same in both places. A source file that
a page links to becomes a page too. The contents at the side are the lists of docs/index.md. Must not use the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers import Parser
from sphinx.addnodes import pending_xref

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".h": "c++", ".cpp": "c++"}

project = "qwill"
html_title = "qwill"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown", **dict.fromkeys(LANGUAGES, "source")}
root_doc = "docs/index"
language = "en"
highlight_language = "text"
myst_heading_anchors = 4
nitpicky = True


def pages() -> list[Path]:
    """Every page of ours, in Markdown."""
    outside = [
        *ROOT.glob("*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("notebooks/*.md"),
        *ROOT.glob("qwill/*/*.md"),
    ]
    return sorted([*outside, *(ROOT / "docs").rglob("*.md")])


def linked_sources() -> Iterator[Path]:
    """The source files that pages link to."""
    for page in pages():
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / link).resolve()
            if path.suffix in LANGUAGES and path.is_file():
                yield path


include_patterns = sorted({path.relative_to(ROOT).as_posix() for path in [*pages(), *linked_sources()]})
exclude_patterns = [".*", "build", "dist", "notebooks/*/*", "tests/data", "**/__pycache__"]


class SourceParser(Parser):
    """A source file as a page: its path, and its text with numbered lines. Only pages of words can be searched."""

    supported = ("source",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Fill `document`."""
        path = Path(document["source"]).relative_to(ROOT)
        about = [nodes.field("", nodes.field_name("", name), nodes.field_body()) for name in ("orphan", "no-search")]
        section = nodes.section("", nodes.title("", path.as_posix()), ids=["source"])
        section += nodes.literal_block(inputstring, inputstring, language=LANGUAGES[path.suffix], linenos=True)
        document += [nodes.docinfo("", *about), section]


def contents(lines: str) -> Iterator[tuple[str, list[str]]]:
    """(title, links to pages in its list, as "text <path>") of each section of the front page."""
    for section in re.split(r"^## ", lines, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found = re.findall(r"^- \[([^\]]*)\]\(([^)\s#:]+\.md)\)", body, re.MULTILINE)
        yield title, [f"{text} <{path}>" for text, path in found]


def add_contents(_app: Any, docname: str, source: list[str]) -> None:
    """Give the front page the tables of contents that the side bar is made of."""
    if docname == root_doc:
        for title, links in contents(source[0]):
            listed = "\n".join(links)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"


def show_folders_as_text(_app: Any, page: nodes.document) -> None:
    """A link to a folder leads somewhere on GitHub only; the site shows its text."""
    here = Path(page["source"]).parent
    for link in [link for link in page.findall(pending_xref) if (here / link["reftarget"]).is_dir()]:
        link.replace_self(link.children)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_source_parser(SourceParser)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", show_folders_as_text)
    return {"parallel_read_safe": True}
