"""The report's one file: template, styles, scripts and data put together. Knows no view, only names and plain data.

No text of a model or a prompt can leave its place: in the page it is escaped, and the data stand in blocks that a
browser never runs, with every `<` written as \\u003c. The page's content security policy names its style and its
script by their hashes and allows nothing else, so that even an escaped text could run nothing and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from qwill import __version__

__all__ = ["build_page", "data_block", "visible"]

SCRIPTS = (
    "core.js",
    "colour.js",
    "tables.js",
    "heatmap.js",
    "chart.js",
    "strip.js",
    "tokens.js",
    "probabilities.js",
    "lens.js",
    "heads.js",
    "attention.js",
    "rotary.js",
    "cache.js",
    "roofline.js",
    "weights.js",
    "main.js",
)
"""The page's script is these, one after the other: each uses names only of those before it, main.js starts it all."""

LARGE = 16 << 10
"""Bytes of JSON from which on a block is compressed; the browser unpacks it when its section is opened."""

BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)


def build_page(about: Mapping[str, Any], views: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """The page as text. `about`: model, prompt, answer, facts; `missing`: why a section has no data."""
    style, script = _asset("report.css"), "\n".join(_asset(name) for name in SCRIPTS)
    blocks = [data_block("missing", dict(missing)), *(data_block(name, data) for name, data in views.items())]
    parts = {
        "policy": _policy(style, script),
        "title": html.escape(visible(f"qwill: {about['model']}")),
        "model": html.escape(visible(about["model"])),
        "version": html.escape(__version__),
        "prompt": html.escape(visible(about["prompt"])),
        "answer": html.escape(visible(about["answer"])) or "<em>none</em>",
        "facts": "".join(
            f"<div><dt>{html.escape(name)}</dt><dd><bdi>{html.escape(visible(text))}</bdi></dd></div>"
            for name, text in about["facts"].items()
        ),
        "style": style,
        "data": "\n".join(blocks),
        "script": script,
    }
    # One pass: a marker inside a text that is put in stays text.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("report.html"))


def data_block(name: str, data: Mapping[str, Any]) -> str:
    """Plain data as an element that the page's script can read and a browser never runs.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packed = len(text) > LARGE
    if packed:
        text = base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 6)).decode("ascii")
    kind = ' data-packed="deflate"' if packed else ""
    return f'<script type="application/json" id="data-{name}"{kind}>{text.replace("<", chr(92) + "u003c")}</script>'


def visible(text: str) -> str:
    """`text` with what a browser would not show, or would obey, written out; line breaks and tabs stay."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    hidden = code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in BIDI
    return f"<U+{code:04X}>" if hidden else character


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("qwill.report").joinpath("assets", name).read_text(encoding="utf-8")
