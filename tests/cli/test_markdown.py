"""Growing markdown: blocks do not depend on how it is cut, and mean what the whole means. Oracle: markdown-it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from qwill.cli.markdown import Block, BlockSplitter

PIECES = [
    *("# Title\n", "## 二级标题\n", "plain words\n", "二行\n", "\n", "\n\n", "    \n", "end", "---\n", "> quoted\n"),
    *(
        "- one\n",
        "- two\n",
        "* \n",
        "  more of it\n",
        "1. first\n",
        "2. second\n",
        "- item\n\n  ```\n  a\n\n  b\n  ```\n",
    ),
    *("```python\nx = 1\n\ny = 2\n```\n", "~~~\n```\n~~~\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "**b** `c`\n"),
    *("<b>html</b>\n", "===\n"),
]


def blocks_of(pieces: list[str]) -> list[str]:
    splitter = BlockSplitter()
    finished = [block for piece in pieces for block in splitter.push(piece)]
    last = splitter.finish()
    return finished + ([last] if last else [])


def meaning(text: str) -> list[tuple[str, str, str, str]]:
    tokens = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).parse(text)
    return [(token.type, token.tag, token.content.rstrip(), token.markup) for token in tokens]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_the_blocks_mean_what_the_whole_text_means(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert [token for block in blocks_of([text]) for token in meaning(block)] == meaning(text)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10), st.data())
def test_blocks_do_not_depend_on_where_the_text_is_cut(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert blocks_of(parts) == blocks_of([text]) == blocks_of(list(text))


def test_the_rest_is_what_is_not_finished_yet() -> None:
    splitter = BlockSplitter()
    assert splitter.push("one\n\ntw") == ["one"]
    assert splitter.rest == "tw"
    assert splitter.push("o\n```py\ncode\n\n") == ["two"]
    assert splitter.rest == "```py\ncode"
    assert splitter.push("```\n") == ["```py\ncode\n\n```"]
    assert splitter.finish() == ""


def shown(text: str, width: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Block(text))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title", "Title\n"),
        ("a **b** `c` ~~d~~", "a b c d\n"),
        ("床前明月光\n疑是地上霜", "床前明月光\n疑是地上霜\n"),
        ("see [this](http://x.y/z)", "see this (http://x.y/z)\n"),
        ("![img](http://x.y/z)", "!img (http://x.y/z)\n"),
        ("<script>x</script> <think>", "<script>x</script> <think>\n"),
        ("- a\n- b", " • a\n • b\n"),
        ("```\nx = [1]\n```", " x = [1]\n"),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]\n"),
    ],
)
def test_nothing_of_the_text_is_lost_and_lines_are_not_filled_up(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize("width", [8, 20, 79])
def test_lines_fit_a_narrow_terminal_in_any_script(width: int) -> None:
    text = "量子计算是一种利用量子力学现象进行计算的技术。 Words and 👩‍👩‍👧 emoji, too.\n\n- 第一项：很长很长很长的一行"
    for block in blocks_of([text]):
        assert all(cell_len(line) <= width for line in shown(block, width).splitlines())
