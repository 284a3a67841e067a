"""One answer as one page: what the engine did for a prompt, in a single HTML file that needs nothing else.

explain    one prompt answered and looked at from all sides -> Report
report     the pictures' data -> Report: the page as text or as a file
page       template, styles, scripts and data put together; what is escaped, and how
assets/    the page's own HTML, CSS and JavaScript, read in the order of page.SCRIPTS
"""

from __future__ import annotations

from qwill.report.explain import ANSWER_TOKENS, MAX_TOKENS, explain
from qwill.report.report import SECTIONS, About, Report

__all__ = ["ANSWER_TOKENS", "MAX_TOKENS", "SECTIONS", "About", "Report", "explain"]
