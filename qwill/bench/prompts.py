"""Prompts of an exact length in tokens: the same for every contestant, another one for every repeat.

Each repeat has its own prompt, so that no engine can answer from a prefix that it remembers. They are cut from a
real text, because ids drawn at random make a real model so unsure that equal engines part on near ties.
"""

from __future__ import annotations

from qwill.tokenizer import Tokenizer

__all__ = ["make_prompts"]

TEXT = """Reading is slower than writing machines allow, and that is its merit. A letter that took a day to write was
kept for a year; a message that took a second is gone by noon. The quill had to be cut, dipped and wiped, so the hand
had time to ask the head whether the next word was needed. 风从河面上吹来,岸边的芦苇低下头去。老人把船系在石柱上,
慢慢走回村子。He counted the steps without meaning to: three hundred and twelve from the landing to the gate, as every
evening. Somebody had left a lamp in the window. 屋里的茶还是热的,桌上放着一封没有拆开的信。 The kettle, the clock and
the rain kept three different times, and none of them was in a hurry. In the morning the road would be dry again, the
market would open at seven, and the boats would go out past the second bridge, where the water is deep and green.
"""


def make_prompts(tokenizer: Tokenizer, length: int, count: int) -> list[list[int]]:
    """`count` prompts of `length` token ids each, every one beginning at another place of the text."""
    once = tokenizer.encode(TEXT)
    ring = once * (2 + length // len(once))
    step = max(1, len(once) // (count + 1))
    starts = [(number * step) % len(once) for number in range(count)]
    return [ring[start : start + length] for start in starts]
