"""How much time and memory one render of a chat template may use. See templates.py for who reports to it.

Sizes are counted in characters and in entries of lists and dicts, each entry counted as often as it can be reached:
a list that holds another list twice has twice its size, because printing or comparing it takes twice the work.
Knows nothing of Jinja's syntax.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from jinja2.utils import Namespace

from qwill.errors import TemplateError

__all__ = ["ENTRIES", "Budget", "Size", "size_of"]

SECONDS = 0.5
SECONDS_PER_ENTRY = 50e-6
CHARACTERS = 2 * 1024 * 1024
CHARACTERS_PER_INPUT_CHARACTER = 32
ENTRIES = 50_000
MAX_DEPTH = 100
MAX_INTEGER_BITS = 4096
MAX_ATTRIBUTE = 64  # of the name that a filter looks up in each item, in characters
MAX_ATTRIBUTE_PARTS = 4  # names in it, between dots and commas
MAX_NEEDLE = 100  # of what is searched or stripped from a text's end, in characters
MAX_WIDTH = 16  # of JSON's indentation and separators, in characters


class Size(NamedTuple):
    """Entries and characters of a value and all that is in it, and how deep it is nested."""

    entries: int
    characters: int
    depth: int


def size_of(value: Any, limit: int, *, plain: bool = False) -> Size:
    """Measure a value, level by level; stops early beyond `limit` entries or characters.

    With `plain`, a namespace inside is an error: it can change after it was measured.

    Raises:
        TemplateError: when the value is larger than the limit or nested deeper than MAX_DEPTH.
    """
    level, entries, characters = [value], 0, 0
    for depth in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                characters += len(item)
                continue
            if isinstance(item, Namespace) and plain:
                raise TemplateError("the chat template stores a namespace in another value, which is not supported")
            if not isinstance(item, Collection):
                continue
            entries += len(item)
            if entries > limit:
                _exceeded("builds too large a value")
            below.extend(item)
            if isinstance(item, Mapping):
                below.extend(item.values())
        if characters > limit:
            _exceeded("builds too large a value")
        if not below:
            return Size(entries, characters, depth)
        level = below
    raise TemplateError("the chat template nests values too deeply")


def _exceeded(what: str) -> NoReturn:
    raise TemplateError(
        f"the chat template {what}", hint="the template may be broken or hostile: use another copy of the model"
    )


class Budget:
    """The budget of one render; grows with what the template was given.

    Every method raises TemplateError when a limit is exceeded. `marker`: see ChatTemplate.render.
    """

    def __init__(self, given: Mapping[str, Any], marker: str) -> None:
        size = size_of(given, 2**31)
        self.marker = marker
        self._limit = ENTRIES + 4 * (size.entries + size.characters)
        self._characters = CHARACTERS + CHARACTERS_PER_INPUT_CHARACTER * (size.characters + size.entries)
        self._end = time.thread_time() + SECONDS + SECONDS_PER_ENTRY * size.entries

    def step(self, value: Any = None) -> Any:
        """One small piece of work was done; its value is handed back."""
        if time.thread_time() > self._end:
            _exceeded("takes too long")
        return value

    def made(self, value: Any, *, copied: bool = False) -> Any:
        """A value was made. `copied`: the texts in a list are new ones too."""
        self.step()
        if isinstance(value, str):
            self._use(len(value))
        elif isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                _exceeded("computes too large a number")
        elif isinstance(value, Collection):
            size = size_of(value, self._limit, plain=True)
            self._use(size.entries + (size.characters if copied else 0))
        return value

    def stored(self, value: Any) -> Any:
        """A value is put where it outlives the expression: into a namespace, a call's arguments."""
        if isinstance(value, (Collection, Namespace)) and not isinstance(value, str):
            size_of(value, self._limit, plain=True)
        return value

    def sliced(self, value: Any) -> Any:
        """A part of a text or list was copied."""
        self.step()
        self._use(len(value))
        return value

    def emit(self, value: Any) -> str:
        """A value is written out."""
        text = value if isinstance(value, str) else str(value)
        self.made(text)
        return text

    def concat(self, values: Iterable[Any]) -> str:
        """Values are joined to one text."""
        return self.made("".join(self.joinable("", values)))  # type: ignore[no-any-return]

    def joinable(self, separator: str, values: Iterable[Any]) -> list[str]:
        """The texts of values that are going to be joined."""
        texts, total = [], 0
        for value in values:
            texts.append(str(value))
            total += len(texts[-1]) + len(separator)
            self.step()
            self._room_for(total)
        return texts

    def counted(self, values: Iterable[Any]) -> Iterable[Any]:
        """The same values; each step of a loop over them reports here."""
        return _Counted(values, self)

    def steps(self, values: Iterable[Any]) -> Iterator[Any]:
        """The same values, made one by one; each is a step."""
        for value in values:
            self.step()
            yield value

    def check_attribute(self, name: Any) -> None:
        """Before an attribute is looked up in each of many items."""
        text = str(name)
        if len(text) > MAX_ATTRIBUTE or len(re.split("[.,]", text)) > MAX_ATTRIBUTE_PARTS:
            _exceeded("looks up too long an attribute")

    def check_needles(self, values: Iterable[Any]) -> None:
        """Before these texts are searched in another, character by character."""
        if any(isinstance(value, str) and len(value) > MAX_NEEDLE for value in values):
            _exceeded("strips or searches too long a text")

    def check_operator(self, operator: str, left: Any, right: Any) -> None:
        """Before an operator that can grow a value."""
        if operator == "*":
            self._check_repeat(left, right)
            self._check_repeat(right, left)
        elif operator == "**":
            whole = isinstance(left, int) and isinstance(right, int)
            if whole and right > 0 and left.bit_length() * right > MAX_INTEGER_BITS:
                _exceeded("computes too large a number")
        elif operator == "%" and isinstance(left, str):
            self.check_format(left, right)

    def _check_repeat(self, value: Any, times: Any) -> None:
        if isinstance(value, Collection) and isinstance(times, int):
            size = size_of(value, self._limit)
            self._room_for((size.characters + size.entries) * times)

    def check_replace(self, text: str, old: Any = "", new: Any = "") -> None:
        """Before `new` replaces every `old`."""
        times = text.count(str(old)) if str(old) else len(text) + 1
        self._room_for(len(text) + times * len(str(new)))

    def check_indent(self, text: Any, width: Any) -> None:
        """Before every line gets `width` spaces or, when it is a text, that text."""
        lines = len(str(text).splitlines()) + 1
        self._room_for(len(str(text)) + lines * (len(width) if isinstance(width, str) else int(width)))

    def check_format(self, form: Any, values: Any) -> None:
        """Before %-formatting."""
        if re.search(r"%[^a-zA-Z%]*(\*|\d{4})", str(form)):
            _exceeded("formats with too large a width")
        size = size_of(values, self._limit)
        self._room_for(len(str(form)) + str(form).count("%") * (1000 + 10 * (size.characters + size.entries)))

    def check_json(self, value: Any, indent: Any, separators: Any) -> None:
        """Before a value is written as JSON."""
        step = len(indent) if isinstance(indent, str) else int(indent or 0)
        between = [len(str(separator)) for separator in separators or ()]
        if max(step, *between, 0) > MAX_WIDTH:
            _exceeded("writes JSON with too large a width")
        size = size_of(value, self._limit)
        self._room_for(size.characters + size.entries * (size.depth * step + sum(between)))

    def _room_for(self, characters: int) -> None:
        if characters > self._characters:
            _exceeded("makes too much text")

    def _use(self, characters: int) -> None:
        self._room_for(characters)
        self._characters -= characters


class _Counted:
    """An iterable that reports each step, and knows its length when the values do."""

    def __init__(self, values: Iterable[Any], budget: Budget) -> None:
        self._values = values
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        return self._budget.steps(self._values)

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]
