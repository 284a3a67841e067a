"""Report: the pictures of one answer as one HTML file. Knows their data and the file, not how anything was computed."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwill.errors import SettingError
from qwill.report.page import build_page, visible
from qwill.whole_file import whole_file

__all__ = ["SECTIONS", "About", "Report"]

SECTIONS = {
    "tokens": "Tokens",
    "probabilities": "Probabilities",
    "logit_lens": "Logit lens",
    "attention": "Attention",
    "rotary": "Rotary phases",
    "kv_cache": "KV cache",
    "roofline": "Time and bytes",
    "weights": "Weights",
}
"""Name of a view -> the title of its section, in the page's order."""


@dataclass(frozen=True)
class About:
    """What the page is about. `facts` are short lines for its head, such as {"answer": "48 tokens"}."""

    model: str
    prompt: str
    answer: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """One self-contained page: no network, no script from elsewhere; it works from a file.

    `views` has the `data()` of each view under its name in `SECTIONS`. A view that is not there has its section
    all the same, and `missing` says there why.

    Raises:
        SettingError: a name that is no section.
    """

    about: About
    views: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted((set(self.views) | set(self.missing)) - set(SECTIONS))
        if unknown:
            raise SettingError(f"a report has no section {unknown[0]!r:.100}", hint="known: " + ", ".join(SECTIONS))

    def html(self) -> str:
        """The whole page.

        Raises:
            ValueError: a number is not finite.
        """
        head = {
            "model": self.about.model,
            "prompt": self.about.prompt,
            "answer": self.about.answer,
            "facts": dict(self.about.facts),
        }
        reasons = {name: self.missing.get(name, "it was not captured.") for name in SECTIONS if name not in self.views}
        return build_page(head, self.views, reasons)

    def save(self, path: str | Path) -> int:
        """Write the page, whole or not at all, and return its bytes. A file of that name is replaced.

        Raises:
            OSError: the file cannot be written.
            ValueError: a number is not finite.
        """
        content = self.html().encode("utf-8", "backslashreplace")
        with whole_file(path) as temporary:
            return temporary.write_bytes(content)

    def as_record(self) -> dict[str, Any]:
        """What the report is about, without the pictures' data: for JSON."""
        return {
            "model": self.about.model,
            "prompt": self.about.prompt,
            "answer": self.about.answer,
            "facts": dict(self.about.facts),
            "sections": [name for name in SECTIONS if name in self.views],
            "missing": dict(self.missing),
        }

    def _repr_html_(self) -> str:
        """A summary for a notebook; the page itself is too large to sit in one."""
        about = self.about
        rows = [("model", about.model), ("prompt", shortened(about.prompt)), ("answer", shortened(about.answer))]
        rows += [
            *about.facts.items(),
            ("sections", ", ".join(SECTIONS[name] for name in SECTIONS if name in self.views)),
        ]
        lines = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'><bdi>{html.escape(visible(text))}</bdi></td></tr>"
            for name, text in rows
        )
        return (
            f"<table><caption style='text-align:left'>A report of what happened inside; "
            f"<code>.save('report.html')</code> writes it</caption>{lines}</table>"
        )


def shortened(text: str, most: int = 200) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[:most] + "…"
