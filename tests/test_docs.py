"""The documentation is true: its code runs, its links lead somewhere, its figures come from committed results.

A page's `python` blocks run in order as one program, the commands after `$ ` in its `console` blocks one by one, with
the smallest real model in place of the named one and a few tokens in place of many. A block that cannot run here has
its reason in a comment before it: <!-- not run: needs a GPU -->. The Chinese README has the blocks of the English one.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")]
PAGES = [*READMES, *OTHERS, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "qwill").rglob("*.md"))]

SMALL_MODEL = "smollm2-135m"
NAMED_MODELS = re.compile(r"qwen3-0\.6b|qwen2\.5-coder-0\.5b")
MANY_TOKENS = re.compile(r"(?<=max_tokens=)\d+|(?<=--max-tokens )\d+")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n+\Z")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"`(qwill(?:\.\w+)+)`")
RESULT = re.compile(r"benchmarks/results/[\w.-]+\.json")
FIGURE = re.compile(r"(\d+(?:\.\d+)?)\s*(tok/s|GB/s|×)")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
SCALES = (1.0, 1e3, 1e6, 1e9, 2.0**20, 2.0**30)
"""Results hold base units; a page may show thousands, millions (MB, MiB), billions, or milliseconds."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    runs: bool


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(m[1], m[2], not NOT_RUN.search(text[: m.start()])) for m in FENCE.finditer(text)]


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", text)


def programs(text: str) -> str:
    """A page's python blocks as one program, with the smallest model."""
    code = "\n".join(block.text for block in blocks(text) if block.language == "python" and block.runs)
    return small(code)


def commands(text: str) -> list[str]:
    """The commands of a page's console blocks; a backslash at the end of a line continues it."""
    lines = "".join(block.text for block in blocks(text) if block.language == "console" and block.runs)
    found = re.findall(r"^\$ (.*)$", lines.replace("\\\n", " "), re.MULTILINE)
    return [small(command) for command in found]


def small(code: str) -> str:
    """The code with less to compute."""
    return MANY_TOKENS.sub("8", NAMED_MODELS.sub(SMALL_MODEL, code))


def headings(text: str) -> list[tuple[int, str]]:
    """(level, title) of every heading."""
    return [(len(m[1]), m[2]) for m in re.finditer(r"^(#+) (.*)$", prose(text), re.MULTILINE)]


def anchor(title: str) -> str:
    """The name under which a heading can be linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def broken_links(page: Path, text: str) -> list[str]:
    """Links to files or headings that do not exist."""
    found = []
    for link in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            found.append(link)
        elif fragment and target.suffix == ".md":
            there = target.read_text(encoding="utf-8") if path else text
            found += [] if fragment in [anchor(title) for _, title in headings(there)] else [link]
    return found


def sections(text: str) -> list[str]:
    """A page cut at its headings."""
    return re.split(r"^#+ .*$", prose(text), flags=re.MULTILINE)


def figures(section: str) -> Iterator[tuple[str, str]]:
    """(number, unit) of every measured figure of a section: before a unit, and in the columns of a table with units."""
    for line in section.splitlines():
        if not line.startswith("|"):
            yield from FIGURE.findall(line)
    for table in re.findall(r"(?:^\|.*\|\n?)+", section, re.MULTILINE):
        if "tok/s" in table or "GB/s" in table:
            for row in table.splitlines()[2:]:
                for cell in row.strip("|").split("|")[1:]:
                    yield from ((number, "×" if "×" in cell else "") for number in NUMBER.findall(cell))


def unproved(section: str, root: Path) -> list[str]:
    """Figures of a section that no committed result holds."""
    wanted = list(figures(section))
    if not wanted:
        return []
    known = [value for name in set(RESULT.findall(section)) for value in numbers(json.loads((root / name).read_text()))]
    return [f"{number} {unit}".strip() for number, unit in wanted if not proved(number, unit, known)]


def numbers(value: Any) -> Iterator[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def proved(number: str, unit: str, known: list[float]) -> bool:
    """Whether a figure is one of the known numbers, rounded as printed; a ratio may be that of two of them."""
    digits = len(number.partition(".")[2])
    values = {value / scale for value in known for scale in SCALES} | {value * 1e3 for value in known}
    if unit == "×":
        values |= {a / b for a in known for b in known if b}
    return any(round(value, digits) == float(number) for value in values)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """As after an install: `qwill` is a command, and answers are the same every time."""
    shim = tmp_path / "bin" / "qwill"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qwill "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "QWILL_OFFLINE": "1"}


RUNNING = [page for page in PAGES if page.exists() and page != READMES[1]]


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.weights
@pytest.mark.parametrize("page", [p for p in RUNNING if programs(p.read_text(encoding="utf-8"))], ids=ids)
def test_the_python_of_a_page_runs(page: Path, environment: dict[str, str], tmp_path: Path, smollm2_gguf: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(programs(page.read_text(encoding="utf-8")))
    command = [sys.executable, str(script)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.weights
@pytest.mark.parametrize("page", [p for p in RUNNING if commands(p.read_text(encoding="utf-8"))], ids=ids)
def test_the_commands_of_a_page_run(
    page: Path, environment: dict[str, str], tmp_path: Path, smollm2_gguf: Path
) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        shell = ["bash", "-euo", "pipefail", "-c", command]
        result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"$ {command}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_blocks_of_a_page_say_their_language(page: Path) -> None:
    assert [block.text for block in blocks(page.read_text(encoding="utf-8")) if not block.language] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_figures_of_a_page_come_from_committed_results(page: Path) -> None:
    found = [figure for section in sections(page.read_text(encoding="utf-8")) for figure in unproved(section, ROOT)]
    assert found == [], "link the result in benchmarks/results that holds these figures, in the same section"


@pytest.mark.parametrize("page", READMES, ids=ids)
def test_a_readme_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150


def test_both_readmes_have_the_same_structure_code_and_figures() -> None:
    english, chinese = (page.read_text(encoding="utf-8") for page in READMES)
    assert [level for level, _ in headings(chinese)] == [level for level, _ in headings(english)]
    assert blocks(chinese) == blocks(english)
    figures_of = [[list(figures(section)) for section in sections(text)] for text in (english, chinese)]
    assert figures_of[0] == figures_of[1]


def missing_names(text: str) -> list[str]:
    """Dotted names of ours, in backquotes, that do not exist."""
    return [name for name in NAME.findall(prose(text)) if not exists(name)]


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_the_names_on_a_page_exist(page: Path) -> None:
    assert missing_names(page.read_text(encoding="utf-8")) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    text = "`qwill.hub.resolve` `qwill.gone` `qwill.request.Request.nothing` `qwill.errors.QwillError`"
    assert missing_names(text) == ["qwill.gone", "qwill.request.Request.nothing"]


def flags(text: str) -> set[str]:
    """Flags in backquotes, in the last column of a page's tables: there stand our own names."""
    rows = [line.rstrip().rstrip("|").rpartition("|")[2] for line in text.splitlines() if line.startswith("|")]
    code = " ".join(code for row in rows for code in re.findall(r"`([^`]*)`", row))
    return set(re.findall(r"(?<!\S)--?[a-z][\w-]*", code))


def test_the_flags_that_other_programs_flags_are_translated_to_exist() -> None:
    reference = [(ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") for name in ("cli.md", "settings.md")]
    fields = {"--" + name.replace("_", "-") for name in re.findall(r"^\| `(\w+)`", reference[1], re.MULTILINE)}
    known = {flag for text in reference for flag in re.findall(r"(?<=`)--?[a-z][\w-]*(?=`)", text)} | fields
    assert flags((ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")) - known == set()


def test_a_flag_on_our_side_of_a_table_is_found() -> None:
    assert flags("| `--theirs -t` | `--ours`, `qwill x --two-words FILE -i a-b` |\n`--prose`") == {
        *("--ours", "--two-words", "-i")
    }


PAGE = """# A page
<!-- not run: needs a GPU -->
```python
LLM("qwen3-0.6b", device="cuda")
```
```python
LLM("qwen3-0.6b")
```
```console
$ qwill run qwen2.5-coder-0.5b --max-tokens 64 \\
    "hello"
Hello!
$ qwill list
```
"""


def test_only_blocks_without_a_reason_run_and_with_the_smallest_model() -> None:
    assert programs(PAGE) == f'LLM("{SMALL_MODEL}")\n'
    assert commands(PAGE) == [f'qwill run {SMALL_MODEL} --max-tokens 8      "hello"', "qwill list"]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The title, really\n")
    text = "[a](there.md) [b](gone.md) [c](there.md#the-title-really) [d](there.md#no) [e](#x) [f](https://x.org)"
    assert broken_links(tmp_path / "page.md", text) == ["gone.md", "there.md#no", "#x"]


RESULTS = {"ours": {"decode": 36.66, "rss_bytes": 1_500_000_000}, "theirs": {"decode": 16.13}}


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("Decodes at 36.7 tok/s. benchmarks/results/a.json", []),
        ("Decodes at 36.8 tok/s. benchmarks/results/a.json", ["36.8 tok/s"]),
        ("Decodes at 36.7 tok/s.", ["36.7 tok/s"]),
        ("It is 2.27× as fast. benchmarks/results/a.json", []),
        ("It is 2.5 × as fast. benchmarks/results/a.json", ["2.5 ×"]),
        ("| | tok/s | memory |\n|---|---|---|\n| run 7 | 36.7 | 1.5 GB |\n\nbenchmarks/results/a.json", []),
        ("| | tok/s | ratio |\n|---|---|---|\n| run 7 | 36.7 | 9.9× |\n\nbenchmarks/results/a.json", ["9.9 ×"]),
        ("Python 3.11 or newer, 5 minutes.", []),
    ],
)
def test_a_figure_without_a_result_is_found(tmp_path: Path, section: str, found: list[str]) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "a.json").write_text(json.dumps(RESULTS))
    assert unproved(section, tmp_path) == found
