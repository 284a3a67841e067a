"""HTML of views: texts made harmless, and colours that fit a light and a dark page alike.

Colours are laid over the page's own with some of it showing through, and letters keep the page's colour. So a
notebook's theme, which no style of ours could know, decides what is light and what is dark.
"""

from __future__ import annotations

import html

__all__ = ["BLUE", "STYLE", "escape", "percent", "shade"]

BLUE = (0, 114, 178)
"""Of Okabe and Ito's colours that can be told apart by everyone: how sure a model is."""

STYLE = """<style>
.qwill-view table.qv{border-collapse:collapse;font-size:12px;line-height:1.25}
.qwill-view table.qv th,.qwill-view table.qv td{border:1px solid rgba(128,128,128,.35);padding:2px 5px;
text-align:left;white-space:nowrap;background:none;color:inherit}
.qwill-view .qv-num{font-variant-numeric:tabular-nums;text-align:right!important}
.qwill-view .qv-small{font-size:10px;opacity:.8}
.qwill-view .qv-flow{display:flex;flex-wrap:wrap;gap:4px;align-items:flex-end;line-height:1.25;margin:4px 0 10px}
.qwill-view .qv-chip{display:inline-flex;flex-direction:column;align-items:center;border-radius:4px;padding:2px 5px;
border:1px solid rgba(128,128,128,.45);font-size:13px}
.qwill-view .qv-mono,.qwill-view .qv-text{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.qwill-view .qv-text{white-space:pre;overflow:hidden;max-width:22em;text-overflow:ellipsis}
.qwill-view .qv-group{display:inline-flex;flex-direction:column;align-items:center;gap:2px;border-radius:6px;
border:2px solid rgba(213,94,0,.8);padding:2px}
.qwill-view td .qv-text,.qwill-view th .qv-text{display:inline-block;vertical-align:bottom;max-width:9em}
.qwill-view .qv-line .qv-text{display:inline;max-width:none;white-space:pre-wrap;overflow-wrap:anywhere}
.qwill-view .qv-special{border:2px dashed rgba(0,158,115,.95)}
.qwill-view .qv-row{display:inline-flex;gap:2px}
.qwill-view .qv-part{font-size:12px;opacity:.8}
</style>"""
"""For all that is inside a view; put once into each."""


def escape(text: str) -> str:
    """A text inside HTML: no markup, and writing from right to left stays in its place."""
    return f"<bdi>{html.escape(text)}</bdi>"


def shade(share: float) -> str:
    """A background for a share 0 … 1: the larger, the stronger. Letters on it stay readable."""
    return f"background:rgba({BLUE[0]},{BLUE[1]},{BLUE[2]},{0.55 * share:.2f})"


def percent(probability: float) -> str:
    """A probability in few letters: 97%, 3.1%, and never 0% or 100% for what is not."""
    if probability > 0.995:
        return "100%" if probability == 1.0 else ">99%"
    if probability >= 0.0995:
        return f"{100 * probability:.0f}%"
    return f"{100 * probability:.1f}%" if probability >= 0.001 else "<0.1%" if probability > 0.0 else "0%"
