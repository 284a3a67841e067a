"""Build the notebooks: run the code of each source once, and put what it shows into the English and the Chinese twin.

    python -m scripts.notebooks                   build all of notebooks/source into notebooks/en and notebooks/zh
    python -m scripts.notebooks 05-kv-cache …     build some
    python -m scripts.notebooks --text            build, but keep the outputs, where only texts have changed; seconds
    python -m scripts.notebooks --check           do the notebooks have the cells of their sources, and outputs? seconds
    python -m scripts.notebooks --model NAME      run the code with another model; do its asserts hold? writes nothing

They are built offline, with the toy model that is part of the package, so anybody can make them again. Knows nothing of
what the notebooks are about.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from scripts.notebook_source import LANGUAGES, Code, NotebookError, Source, Text, read_source

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
CELL_SECONDS = 600
MAX_OUTPUT = 150_000
"""Characters of one cell's outputs; a picture of 30 KB is 40,000 of them."""

READMES = {"en": "README.md", "zh": "README.zh-CN.md"}
HEADS = {
    "en": (
        "> One of the qwill notebooks: [all of them](../README.md), [this one in Chinese](../zh/{name}.ipynb). To run "
        "it: `pip install 'qwill[notebooks]'`, then open it in Jupyter. It needs no network: the model is `tiny`, a "
        "toy Qwen3 inside the package, and so the outputs below are the toy's. With "
        "`QWILL_NOTEBOOK_MODEL=qwen3-0.6b` in the environment it fetches and runs the real one."
    ),
    "zh": (
        "> qwill 系列 notebook 之一：[全部目录](../README.zh-CN.md)，[英文版](../en/{name}.ipynb)。要运行它："
        "`pip install 'qwill[notebooks]'`，然后用 Jupyter 打开。不需要网络：所用模型是包里自带的玩具 Qwen3，名叫 "
        "`tiny`，下面的输出也都来自它。设置环境变量 `QWILL_NOTEBOOK_MODEL=qwen3-0.6b`，就会下载并运行真正的模型。"
    ),
}
INDEXES = {
    "en": """# Notebooks

Each one rebuilds one idea by hand, in a few short cells of plain PyTorch, and then asserts that the result equals what
the package computes. On the way it shows what goes wrong when the idea is almost right. Read them here, or run them:
`pip install 'qwill[notebooks]'`. [中文](README.zh-CN.md)

They were executed offline on `tiny`, a toy Qwen3 that is part of the package; with `QWILL_NOTEBOOK_MODEL=qwen3-0.6b`
they run on the real one. They have not been run on the real Qwen3-0.6B yet: its weights could not be had where they
were built. They are made from [one source for both languages](source) by `python -m scripts.notebooks`.

| | Notebook | What it does |
|---|---|---|
""",
    "zh": """# Notebook 目录

每一篇用几格短短的 PyTorch 代码，亲手重建一个想法，然后用断言证明：结果与 qwill 这个包算出来的相等。途中还会看到，
“差一点就对”的写法会怎样出错。可以直接在这里读，也可以自己运行：`pip install 'qwill[notebooks]'`。[English](README.md)

它们是离线执行的，用的是包里自带的玩具 Qwen3，名叫 `tiny`；设置 `QWILL_NOTEBOOK_MODEL=qwen3-0.6b` 就会换成真正的模型。
构建这些 notebook 的机器拿不到 Qwen3-0.6B 的权重，所以没有在真模型上跑过。两种语言出自[同一份源文件](source)，由
`python -m scripts.notebooks` 生成。

| | Notebook | 内容 |
|---|---|---|
""",
}

Output = dict[str, Any]
"""One output of a cell, as nbformat has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check or try the notebooks. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.notebooks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="such as 05-kv-cache; by default all")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="only compare the notebooks with their sources")
    action.add_argument("--text", action="store_true", help="only bring the texts up to date, and keep the outputs")
    action.add_argument("--model", help="only run the code, with this model")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            problems = [problem for problem in find_problems(FOLDER) if named(problem, options.names)]
            print("\n".join(problems) or "notebooks: all are what their sources make")
            return 1 if problems else 0
        for source in chosen(read_sources(FOLDER), options.names):
            print(f"notebooks: {source.name}", flush=True)
            outputs = kept(source, FOLDER) if options.text else run(source, model=options.model)
            if not options.model:
                write(source, outputs, FOLDER)
        if not options.model:
            write_indexes(FOLDER)
    except NotebookError as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 1
    return 0


def read_sources(folder: Path) -> list[Source]:
    """Every source, in order.

    Raises:
        NotebookError: one breaks a rule.
    """
    return [read_source(path) for path in sorted((folder / "source").glob("*.md"))]


def chosen(sources: Sequence[Source], names: Sequence[str]) -> list[Source]:
    """The sources of these names; all of them for none.

    Raises:
        NotebookError: there is no such source.
    """
    known = {source.name: source for source in sources}
    for name in names:
        if name not in known:
            raise NotebookError(f"there is no notebook {name!r}; known: {', '.join(known)}")
    return [known[name] for name in names] or list(sources)


def named(problem: str, names: Sequence[str]) -> bool:
    """Whether a problem is about one of these notebooks, or no names were given."""
    return not names or any(f"/{name}." in problem for name in names)


def run(source: Source, *, model: str | None = None) -> list[list[Output]]:
    """Run the cells of a source in a kernel and a folder of their own. The outputs of each code cell.

    Without a `model` the notebook's own choice is run, and the network is forbidden.

    Raises:
        NotebookError: a cell failed, took too long, or shows what should not be shown; says which.
    """
    notebook = nbformat.from_dict(as_notebook(source, LANGUAGES[0]))  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # this Python's, whatever "python3" is for the user
            connection_file=f"{folder}/kernel.json",
            transport="ipc",
        )
        client = NotebookClient(
            notebook,
            km=kernel,
            timeout=CELL_SECONDS,
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
            record_timing=False,
        )
        try:
            client.execute(env=environment(folder, model), cleanup_kc=True)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise NotebookError(_failure(source, notebook, error)) from None
        cells = _code_cells(notebook)
        outputs = [[clean(output) for output in cell.outputs] for cell in cells]
        for code, shown in zip(_codes(source), outputs, strict=True):
            for problem in unfit(shown, [folder, str(Path.home()), str(ROOT), sys.prefix]):
                raise NotebookError(f"{source.name}.md:{code.line}: the cell {problem}")
    return outputs


def kept(source: Source, folder: Path) -> list[list[Output]]:
    """The outputs of a notebook whose code is still that of its source.

    Raises:
        NotebookError: its code is another; it must run.
    """
    path = folder / LANGUAGES[0] / f"{source.name}.ipynb"
    cells = _code_cells(nbformat.read(path, as_version=4)) if path.is_file() else []  # type: ignore[no-untyped-call]
    if [cell.source for cell in cells] != [code.python for code in _codes(source)]:
        raise NotebookError(f"{source.name}: the code has changed; build it without --text")
    return [list(cell.outputs) for cell in cells]


def environment(folder: str, model: str | None) -> dict[str, str]:
    """The kernel's environment: nothing of the user's IPython, and no network for the model of the package."""
    kept = {name: value for name, value in os.environ.items() if name != "QWILL_NOTEBOOK_MODEL"}
    own = {"QWILL_NOTEBOOK_MODEL": model} if model else {"QWILL_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    quiet = {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
    quiet["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm, of ipywidgets that are not installed
    return {**kept, **own, **quiet, "IPYTHONDIR": f"{folder}/.ipython"}


def _failure(source: Source, notebook: Any, error: Exception) -> str:
    """Which cell failed: the first that shows an error, or the one that was running when the kernel was lost."""
    cells = _code_cells(notebook)
    failed = [i for i, cell in enumerate(cells) if any(o.output_type == "error" for o in cell.outputs)]
    ran = [i for i, cell in enumerate(cells) if cell.execution_count is not None]
    line = _codes(source)[failed[0] if failed else min(len(ran), len(cells) - 1)].line
    reason = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
    return f"{source.name}.md:{line}: the cell failed: {reason}"


def clean(output: Output) -> Output:
    """An output without what differs from run to run, and without the plain form of what has a better one."""
    kept = {key: value for key, value in output.items() if key in ("output_type", "name", "text", "data")}
    if "data" in kept:
        data = dict(kept["data"])
        better = {kind: value for kind, value in data.items() if kind != "text/plain"}
        kept |= {"data": better or data, "metadata": {}}
    if kept["output_type"] == "execute_result":
        kept["execution_count"] = None
    return kept


def unfit(outputs: Sequence[Output], machine: Sequence[str]) -> Iterator[str]:
    """What is wrong with the outputs of a cell; `machine` are paths that mean nothing to anybody else."""
    text = json.dumps(outputs, ensure_ascii=False)
    for output in outputs:
        if output.get("name") == "stderr":
            yield f"writes to stderr: {output['text']:.300}"
    if "\\u001b" in text:
        yield "writes terminal colours"
    if any(path in text for path in machine):
        yield "shows a path of this machine"
    if " at 0x" in text:
        yield "shows an address in memory"
    if len(text) > MAX_OUTPUT:
        yield f"shows {len(text):,} characters, at most {MAX_OUTPUT:,}"


def as_notebook(source: Source, language: str, outputs: Sequence[Sequence[Output]] = ()) -> dict[str, Any]:
    """The notebook of a source in one language, with the outputs of its code cells, or with none."""
    head = f"# {source.number} · {source.titles[language]}\n\n" + HEADS[language].format(name=source.name)
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "source": head}]
    shown = iter(outputs)
    for section in source.sections:
        if isinstance(section, Text):
            cells.append({"cell_type": "markdown", "source": section.markdown[language]})
        else:
            own = {"execution_count": None, "outputs": list(next(shown, ()))}
            cells.append({"cell_type": "code", "source": section.python, **own})
    return {
        "cells": [{**cell, "id": f"{source.name}-{i}", "metadata": {}} for i, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_file(notebook: dict[str, Any]) -> str:
    """The text of an .ipynb file.

    Raises:
        nbformat.ValidationError: it is no valid notebook.
    """
    node = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    nbformat.validate(node)
    return f"{nbformat.writes(node)}\n"  # type: ignore[no-untyped-call]


def write(source: Source, outputs: Sequence[Sequence[Output]], folder: Path) -> None:
    """Write both twins of a notebook."""
    for language in LANGUAGES:
        path = folder / language / f"{source.name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_file(as_notebook(source, language, outputs)), encoding="utf-8")


def index(sources: Sequence[Source], language: str) -> str:
    """The page that lists all notebooks."""
    rows = [
        f"| {s.number} | [{s.titles[language]}]({language}/{s.name}.ipynb) | {s.summary(language)} |\n" for s in sources
    ]
    return INDEXES[language] + "".join(rows)


def write_indexes(folder: Path) -> None:
    """Write the pages that list all notebooks."""
    for language, name in READMES.items():
        (folder / name).write_text(index(read_sources(folder), language), encoding="utf-8")


def find_problems(folder: Path) -> list[str]:
    """Where notebooks and index pages are not what the sources make. Runs nothing."""
    sources = read_sources(folder)
    problems = [problem for source in sources for problem in _problems_of(source, folder)]
    wanted = {f"{source.name}.ipynb" for source in sources}
    made = [path for language in LANGUAGES for path in sorted((folder / language).glob("*.ipynb"))]
    problems += [f"{path.parent.name}/{path.name}: has no source" for path in made if path.name not in wanted]
    for language, name in READMES.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != index(sources, language):
            problems.append(f"{name}: is not what the sources make; build it again")
    return problems


def _problems_of(source: Source, folder: Path) -> Iterator[str]:
    outputs = []
    for language in LANGUAGES:
        name = f"{language}/{source.name}.ipynb"
        path = folder / name
        if not path.is_file():
            yield f"{name}: is missing; build it"
            continue
        shown = outputs_of(path)
        outputs.append(shown)
        if path.read_text(encoding="utf-8") != as_file(as_notebook(source, language, shown)):
            yield f"{name}: is not what the source makes; build it again"
        for code, own in zip(_codes(source), shown, strict=False):
            if prints(code.python) and not own:
                yield f"{name}: the cell of {source.name}.md:{code.line} prints, but has no output; build it again"
    if any(shown != outputs[0] for shown in outputs):
        yield f"en/{source.name}.ipynb: the outputs of the two languages differ; build it again"


def outputs_of(path: Path) -> list[list[Output]]:
    """The outputs of each code cell of a notebook file."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return [list(cell.outputs) for cell in _code_cells(notebook)]


def prints(python: str) -> bool:
    """Whether a cell surely shows something: it calls print or display, and not only inside of a function."""
    waiting: list[ast.AST] = list(ast.parse(python).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "display"):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _codes(source: Source) -> list[Code]:
    return [section for section in source.sections if isinstance(section, Code)]


if __name__ == "__main__":
    sys.exit(main())
