"""Build the documentation as a site, and check it: `make docs`, or `python -m scripts.site [FOLDER]`.

Sphinx reads the pages, with every warning an error. Then each link of the built pages must lead to a page and a place
that exist, and nothing may be fetched from elsewhere: the site is read from disk, without a network. Links to other
sites are counted, not followed. Knows nothing of what the pages say; docs/conf.py has how they are read.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
FRONT_PAGE = "docs/index.html"

FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""Element -> the attribute whose address a browser fetches by itself."""

IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
ENTRY = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{0}</a>\n'


@dataclass
class Links(HTMLParser):
    """The ids of a page, the links for readers, and the addresses that a browser fetches for itself."""

    ids: set[str] = field(default_factory=set)
    hrefs: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element of the page."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.hrefs.append(values["href"])
        if values.get(FETCHED.get(tag, "")):
            self.fetched.append(values[FETCHED[tag]])


def main(arguments: Sequence[str]) -> int:
    """Build into the folder that is named, build/site by default. Returns the exit code."""
    site = Path(arguments[0]) if arguments else SITE
    code = build(site)
    if code == 0:
        broken, external = check(site)
        for problem in broken:
            print(problem, file=sys.stderr)
        code = 1 if broken else 0
        print(f"docs: {site / FRONT_PAGE}; {len(external)} links to other sites were not followed")
    return code


def build(site: Path) -> int:
    """Run Sphinx. Returns its exit code; what it says goes to stderr."""
    how = ["-W", "-n", "--keep-going", "-q", "-E", "-j", "1", "-b", "html", "-c", "docs", "-d", str(site / ".doctrees")]
    code = subprocess.run([sys.executable, "-m", "sphinx", *how, ".", str(site)], cwd=ROOT, check=False).returncode
    if code == 0:
        (site / "index.html").write_text(ENTRY.format(FRONT_PAGE), encoding="utf-8")
    return code


def check(site: Path) -> tuple[list[str], set[str]]:
    """What is wrong with the links of a built site, and the addresses of other sites."""
    broken: list[str] = []
    external: set[str] = set()
    for page in sorted(site.rglob("*.html")):
        links = links_of(page)
        broken += [f"{page}: {address} would be fetched" for address in links.fetched if is_external(address)]
        external |= {address for address in links.hrefs if is_external(address)}
        here = [address for address in (*links.hrefs, *links.fetched) if not is_external(address)]
        broken += [f"{page}: {address} leads nowhere" for address in here if not leads_somewhere(page, address)]
    for style in sorted(site.rglob("*.css")):
        broken += [f"{style}: {address} would be fetched" for address in fetched_by(style) if is_external(address)]
    return broken, external


def is_external(address: str) -> bool:
    """Whether an address has a scheme or a host; data that stands in the page is not elsewhere."""
    parts = urlsplit(address)
    return bool(parts.netloc or parts.scheme) and parts.scheme != "data"


def leads_somewhere(page: Path, address: str) -> bool:
    """Whether a link within the site has a file at its end, and in it the place that it names."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return True
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.is_file():
        return False
    return not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in links_of(target).ids


def fetched_by(style: Path) -> Iterator[str]:
    """The addresses in a style sheet."""
    for match in IN_STYLE.finditer(style.read_text(encoding="utf-8")):
        yield match[1] or match[2]


@cache
def links_of(page: Path) -> Links:
    """The links of one page."""
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
