"""A notebook's source: both languages of every section, and errors that say in which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.notebook_source import Code, NotebookError, Text, parse, read_source

GOOD = """# 05 The cache | 缓存

<!-- en -->
It is *measured*,
here.

## Shown, not run
```py
wrong = True
```
<!-- zh -->
量一量。

## 只看不跑
```py
wrong = True
```
```python
x = 1

print(x)
```

<!-- en -->
End.
<!-- zh -->
完。
"""

SHORT = "# 05 The cache | 缓存\n<!-- en -->\nEnglish.\n<!-- zh -->\n中文。\n```python\nx = 1\n```\n"


def problem(text: str, name: str = "05-cache.md") -> str:
    with pytest.raises(NotebookError) as error:
        parse(text, Path("folder") / name)
    return str(error.value)


def test_sections_and_titles_are_read() -> None:
    source = parse(GOOD, Path("folder/05-cache.md"))
    assert (source.name, source.number, source.titles) == ("05-cache", "05", {"en": "The cache", "zh": "缓存"})
    first, code, last = source.sections
    shown = "```py\nwrong = True\n```"
    assert first == Text(
        3,
        {
            "en": f"It is *measured*,\nhere.\n\n## Shown, not run\n{shown}",
            "zh": f"量一量。\n\n## 只看不跑\n{shown}",
        },
    )
    assert code == Code(18, "x = 1\n\nprint(x)")
    assert last == Text(24, {"en": "End.", "zh": "完。"})


def test_the_summary_is_the_first_paragraph_on_one_line() -> None:
    source = parse(GOOD, Path("05-cache.md"))
    assert source.summary("en") == "It is *measured*, here."
    assert source.summary("zh") == "量一量。"


def test_the_short_example_is_good() -> None:
    assert len(parse(SHORT, Path("05-cache.md")).sections) == 2


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("# 05 The cache | 缓存", "# The cache", ':1: the first line is not "# 05 English title | Chinese title"'),
        ("# 05 The", "# 06 The", ":1: the first line is not"),
        ("<!-- zh -->\n中文。\n", "", ":2: a section needs <!-- en --> and then <!-- zh -->"),
        ("<!-- en -->\nEnglish.\n", "", ":2: a section needs"),
        ("<!-- zh -->", "<!-- cn -->", ":2: a section needs"),
        ("<!-- en -->\n", "", ":2: text outside of a section"),
        ("English.", "", ":2: the en text is empty"),
        ("中文。", "  ", ":4: the zh text is empty"),
        ("中文。", "## 中文", ":4: the headings of the two languages differ"),
        ("中文。", "```py\nx\n```", ":4: the code of the two languages differ"),
        ("x = 1", "x = = 1", ":7: not Python: invalid syntax"),
        ("x = 1", "# x", ":6: the cell is empty"),
        ("x = 1", "x = 1\n" * 41, ":6: the cell has 41 lines, at most 40"),
        ("\n```\n", "\n", ":6: the cell has no closing ```"),
        ("```python\nx = 1\n```\n", "", ":1: there is no ```python cell"),
        ("\n```\n", "\n```\nMore text.", ":8: text outside of a section"),
        ("<!-- en -->\nEnglish.\n<!-- zh -->\n中文。\n", "", ":2: a notebook begins with a section of text"),
    ],
)
def test_a_rule_that_is_broken_is_an_error_with_its_line(old: str, new: str, found: str) -> None:
    assert old in SHORT
    assert problem(SHORT.replace(old, new)).startswith(f"05-cache.md{found}")


def test_the_file_has_the_number_of_its_title() -> None:
    assert problem(SHORT, "06-cache.md").startswith("06-cache.md:1: ")


def test_a_file_that_is_not_utf_8_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "05-cache.md"
    path.write_bytes(b"# 05 The cache | ...\n\xff")
    with pytest.raises(NotebookError, match=r"05-cache\.md:2: not UTF-8"):
        read_source(path)


def test_a_cell_keeps_its_form_feed_which_ends_no_line() -> None:
    source = parse(SHORT.replace("x = 1", "x =\f 1"), Path("05-cache.md"))
    assert any(isinstance(section, Code) and "\f" in section.python for section in source.sections)
