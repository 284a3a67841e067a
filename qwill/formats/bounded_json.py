"""JSON from an untrusted file, within bounds: size, number of items, depth, no duplicate keys, no odd numbers or text.

Knows nothing of what the JSON means.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

__all__ = ["parse_object"]

# Python's objects are large: nested empty lists take 30 times their bytes of JSON. So the items are counted first.
# A tensor of a safetensors header counts as eight; 2**20 leaves room for 130,000 tensors.
MAX_ITEMS = 2**20


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object that `data`, UTF-8, holds.

    Raises:
        ValueError: in words, for anything that is not one object, or breaks a limit.
    """
    if not data.startswith(b"{"):
        raise ValueError("it does not start with '{'")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_ITEMS:
        raise ValueError(f"it has more than {MAX_ITEMS} items")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 at byte {error.start}") from None
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if b"\\u" in data:
        _check_text(content)
    result: dict[str, Any] = content
    return result


def _check_text(content: Any) -> None:
    """An escape can spell half of a surrogate pair, which no one can print or encode."""
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0]!r:.100} appears twice")
    return content


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits:.60} is too large for a number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
