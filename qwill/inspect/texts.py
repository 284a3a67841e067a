"""Numbers and names, made fit to be shown. Knows nothing of models and consoles."""

from __future__ import annotations

__all__ = ["format_count", "printable"]


def format_count(count: int) -> str:
    """A number of parameters for people: 1024 -> "1,024", 596049920 -> "596.0 M"."""
    if count < 10_000:
        return f"{count:,}"
    if count < 999_950:
        return f"{count / 1e3:.1f} k"
    if count < 999_950_000:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e9:.2f} B"


def printable(text: str, most: int = 200) -> str:
    """A text from a file, safe to show: no control characters or direction marks, and at most `most` characters."""
    safe = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
    return safe if len(text) <= most else f"{safe}…"
