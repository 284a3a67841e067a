"""The report's file: nothing in a text gets out of its place, the data come back whole, the policy is strict."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest

from qwill.report.page import LARGE, SCRIPTS, build_page, data_block, visible

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!-- <script>",
    "]]>",
    "{{script}}",
    '" onload="alert(1)',
    "\u2028\u2029\x00\x1b[2J",
    "\u202eevil\u202c",
    "\ud800",
    "你好👩‍👩‍👧",
]


class Elements(HTMLParser):
    """Every element, in order, as an independent parser sees them; and the text of each data block."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.blocks: dict[str, str] = {}
        self._block = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._block = str(dict(attrs).get("id")) if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._block.startswith("data-"):
            self.blocks[self._block] = self.blocks.get(self._block, "") + data


def page_with(text: str) -> str:
    about = {"model": text, "prompt": text, "answer": text, "facts": {text: text}}
    return build_page(about, {"tokens": {"tokens": [{"text": text}]}}, {"weights": text})


def unpacked(page: str, name: str) -> Any:
    block = rf'<script type="application/json" id="data-{name}"( data-packed="deflate")?>(.*?)</script>'
    found = re.search(block, page)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[2])) if found[1] else found[2])


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_adds_no_element_and_no_attribute_to_the_page(text: str) -> None:
    harmless, hostile = Elements(page_with("x")), Elements(page_with(text))
    assert hostile.tags == harmless.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_comes_back_from_the_data_as_it_was(text: str) -> None:
    page = page_with(text).encode("utf-8", "backslashreplace").decode("utf-8")
    assert unpacked(page, "tokens") == {"tokens": [{"text": text}]}
    assert json.loads(Elements(page).blocks["data-missing"]) == {"weights": text}


def test_a_large_block_is_compressed_and_comes_back_as_it_was() -> None:
    data = {"texts": HOSTILE * LARGE}
    block = data_block("attention", data)
    assert "<" not in block.partition(">")[2].removesuffix("</script>")
    assert len(block) < LARGE < len(json.dumps(data))
    assert unpacked(block, "attention") == data


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        data_block("rotary", {"theta": value})


def test_what_a_browser_would_obey_or_hide_is_written_out() -> None:
    assert visible("a\u202eb\x1b\x00\ud800\x9b\n\t你") == "a<U+202E>b<U+001B><U+0000><U+D800><U+009B>\n\t你"


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    page = page_with("x")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    directives = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    style, script = re.findall(r"<style>(.*?)</style>|<script type=\"module\">(.*?)</script>", page, re.S)
    for directive, text in (("style-src", style[0]), ("script-src", script[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[directive] == f"'sha256-{digest}'"
    assert directives["default-src"] == directives["base-uri"] == directives["form-action"] == "'none'"
    assert set(directives) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert directives["img-src"] == "data:"


def test_the_page_names_no_other_place() -> None:
    page = page_with("x")
    page = page.replace("http://www.w3.org/2000/svg", "").replace('<link rel="icon" href="data:,">', "")
    assert not re.search(r"https?:|//[a-z]+\.[a-z]|@import|url\(|<link|src=", page)


def test_no_part_of_the_script_ends_it_or_writes_html() -> None:
    page = page_with("x")
    script = page.rpartition('<script type="module">')[2].rpartition("</script>")[0]
    assert len(SCRIPTS) == len(set(SCRIPTS))
    for forbidden in ("</script", "<!--", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in script
