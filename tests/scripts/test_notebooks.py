"""The notebooks are what their sources make, and their code runs here and now: its asserts compare with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from scripts import notebooks
from scripts.notebook_source import NotebookError, Source, parse

TEXT = "<!-- en -->\nEnglish.\n<!-- zh -->\n中文。\n"
SHOWN = [[{"output_type": "stream", "name": "stdout", "text": "1\n"}]]


def source(*cells: str, text: str = TEXT) -> Source:
    code = "".join(f"```python\n{cell}\n```\n" for cell in cells)
    return parse(f"# 05 The cache | 缓存\n{text}{code}", Path("05-cache.md"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one notebook that is as it should be."""
    made = source("print(1)")
    (tmp_path / "source").mkdir()
    text = f"# 05 The cache | 缓存\n{TEXT}```python\nprint(1)\n```\n"
    (tmp_path / "source" / "05-cache.md").write_text(text, encoding="utf-8")
    notebooks.write(made, SHOWN, tmp_path)
    notebooks.write_indexes(tmp_path)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# --- what is shipped


def test_every_shipped_notebook_is_what_its_source_makes() -> None:
    assert notebooks.find_problems(notebooks.FOLDER) == []


@pytest.mark.parametrize("shipped", notebooks.read_sources(notebooks.FOLDER), ids=lambda source: source.name)
def test_the_code_of_a_notebook_runs_offline_and_shows_what_is_shipped(shipped: Source) -> None:
    now = notebooks.run(shipped)
    then = notebooks.outputs_of(notebooks.FOLDER / "en" / f"{shipped.name}.ipynb")
    assert [kinds(outputs) for outputs in now] == [kinds(outputs) for outputs in then]


def kinds(outputs: list[Any]) -> list[list[str]]:
    """What outputs consist of, without their content: times and last digits differ from machine to machine."""
    return [[output["output_type"], *output.get("data", {})] for output in outputs]


# --- running


def test_both_twins_have_the_outputs_of_one_run_and_nothing_of_this_machine(tmp_path: Path) -> None:
    made = source(
        "import matplotlib.pyplot as plt\n\nprint('你好')\nprint('again')\nplt.plot([1, 2])\nplt.show()",
        "x = 2",
        "x + 40",
    )
    outputs = notebooks.run(made)
    picture = outputs[0][1]["data"]
    assert list(picture) == ["image/png"]
    assert outputs[0][0] == {"output_type": "stream", "name": "stdout", "text": "你好\nagain\n"}
    answer = {"output_type": "execute_result", "data": {"text/plain": "42"}, "metadata": {}, "execution_count": None}
    assert outputs[1:] == [[], [answer]]
    notebooks.write(made, outputs, tmp_path)
    twins = [json.loads((tmp_path / language / "05-cache.ipynb").read_text()) for language in ("en", "zh")]
    english, chinese = ([cell for cell in twin["cells"] if cell["cell_type"] == "code"] for twin in twins)
    assert english == chinese
    assert [cell["execution_count"] for cell in english] == [None, None, None]
    assert twins[0]["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def test_a_cell_that_fails_is_named_with_its_line() -> None:
    with pytest.raises(NotebookError, match=r"^05-cache.md:9: the cell failed: AssertionError: not equal$"):
        notebooks.run(source("x = 1", "assert x == 2, 'not equal'", "x"))


def test_a_cell_that_warns_is_refused() -> None:
    with pytest.raises(NotebookError, match=r"^05-cache.md:6: the cell writes to stderr: .*old.*"):
        notebooks.run(source("import warnings\n\nwarnings.warn('old', stacklevel=1)"))


def test_the_model_is_the_notebooks_own_choice_and_the_network_is_closed_unless_a_model_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QWILL_NOTEBOOK_MODEL", "mine")
    monkeypatch.delenv("QWILL_OFFLINE", raising=False)
    own = notebooks.environment("folder", None)
    assert "QWILL_NOTEBOOK_MODEL" not in own
    assert own["QWILL_OFFLINE"] == own["HF_HUB_OFFLINE"] == "1"
    named = notebooks.environment("folder", "qwen3-0.6b")
    assert named["QWILL_NOTEBOOK_MODEL"] == "qwen3-0.6b"
    assert "QWILL_OFFLINE" not in named


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fine", None),
        ("\x1b[31mred", "writes terminal colours"),
        ("in /home/me/x", "shows a path of this machine"),
        ("<Thing at 0x7f00>", "shows an address in memory"),
        ("x" * 150_000, "shows 150,057 characters, at most 150,000"),
    ],
)
def test_outputs_that_would_not_be_the_same_for_everybody_are_refused(text: str, found: str | None) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": text}
    assert list(notebooks.unfit([output], ["/home/me"])) == ([found] if found else [])


def test_with_another_model_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    for path in folder.glob("*.md"):
        path.unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert notebooks.main(["--model", "another"]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# --- files


def test_a_written_notebook_is_valid_and_its_cell_ids_stay(tmp_path: Path) -> None:
    for _ in range(2):
        notebooks.write(source("print(1)"), SHOWN, tmp_path)
        notebook = nbformat.read(tmp_path / "zh" / "05-cache.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert [cell.id for cell in notebook.cells] == ["05-cache-0", "05-cache-1", "05-cache-2"]
    assert notebook.cells[0].source.startswith("# 05 · 缓存\n")
    assert notebook.cells[1].source == "中文。"


def test_a_folder_as_it_should_be_has_no_problems(folder: Path) -> None:
    assert notebooks.find_problems(folder) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("source/05-cache.md", "English.", "Better.", "en/05-cache.ipynb: is not what the source makes"),
        ("source/05-cache.md", "中文。", "更好。", "zh/05-cache.ipynb: is not what the source makes"),
        ("source/05-cache.md", "print(1)", "print(2)", "zh/05-cache.ipynb: is not what the source makes"),
        ("zh/05-cache.ipynb", "中文。", "改过。", "zh/05-cache.ipynb: is not what the source makes"),
        ("zh/05-cache.ipynb", '"1\\n"', '"2\\n"', "en/05-cache.ipynb: the outputs of the two languages differ"),
        ("README.md", "05-cache", "06-cache", "README.md: is not what the sources make"),
        ("README.zh-CN.md", "缓存", "改过", "README.zh-CN.md: is not what the sources make"),
    ],
)
def test_a_change_that_was_not_built_is_found(folder: Path, file: str, old: str, new: str, found: str) -> None:
    change(folder / file, old, new)
    assert any(problem.startswith(found) for problem in notebooks.find_problems(folder))


def test_outputs_are_kept_where_only_texts_have_changed(folder: Path) -> None:
    assert notebooks.kept(source("print(1)", text=TEXT.replace("English", "Better")), folder) == SHOWN
    with pytest.raises(NotebookError, match="05-cache: the code has changed; build it without --text"):
        notebooks.kept(source("print(2)"), folder)


def test_a_missing_notebook_and_one_without_a_source_are_found(folder: Path) -> None:
    (folder / "zh" / "05-cache.ipynb").rename(folder / "zh" / "09-gone.ipynb")
    assert notebooks.find_problems(folder) == [
        "zh/05-cache.ipynb: is missing; build it",
        "zh/09-gone.ipynb: has no source",
    ]


def test_a_cell_that_prints_without_an_output_is_found(folder: Path) -> None:
    notebooks.write(source("print(1)"), [[]], folder)
    assert notebooks.find_problems(folder) == [
        f"{language}/05-cache.ipynb: the cell of 05-cache.md:6 prints, but has no output; build it again"
        for language in ("en", "zh")
    ]


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("print(1)", True),
        ("for i in range(3):\n    display(i)", True),
        ("def f():\n    print(1)", False),
        ("x = 1", False),
    ],
)
def test_a_cell_that_prints_is_known_without_running_it(python: str, expected: bool) -> None:
    assert notebooks.prints(python) == expected


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotebookError, match=r"there is no notebook '06'; known: 05-cache"):
        notebooks.chosen([source("x = 1")], ["06"])
