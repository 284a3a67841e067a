"""Imports point down, the light modules stay light, and what must never be called is not called.

Everything is read from the source with `ast`, so that lazy and typing-only imports obey too; two tests start a
fresh Python and look at what it really loaded.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The reading order: a module imports only from lines above its own.
ORDER = [
    {"_native"},  # csrc/
    {"errors"},
    {"settings"},
    {"sampling_params", "outputs", "system", "whole_file"},
    {"formats"},
    {"config"},
    {"checkpoint_names"},
    {"hub"},
    {"detokenizer"},
    {"tokenizer_files"},
    {"gguf_vocab"},
    {"tokenizer"},
    {"messages", "template_budget", "chat_output"},
    {"templates", "thinking"},
    {"chat"},
    {"openai"},
    {"answer"},
    {"request"},
    {"block_pool"},
    {"scheduler"},
    {"step_cost", "prompt_lookup"},
    {"speculative"},
    {"batch"},
    {"quantization"},
    {"ops"},
    {"quantized_checkpoint"},
    {"checkpoint_values"},
    {"packing"},
    {"models"},
    {"weights"},
    {"quantize"},
    {"replay"},
    {"runner"},
    {"draft_model"},
    {"grammar"},
    {"drawing"},
    {"sampler"},
    {"faults"},
    {"engine"},
    {"job"},
    {"loader"},
    {"speculation_loader"},
    {"intake"},
    {"service"},
    {"llm"},
    {"async_llm"},
    {"offline_batch"},
    {"eval"},
    {"tracing"},
    {"views"},
    {"report"},
    {"inspect"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

# These load in milliseconds, so that `qwill --help`, `qwill list` and a typing mistake answer at once.
TORCH_FREE = {
    *("errors", "settings", "sampling_params", "outputs", "system", "formats", "config", "checkpoint_names", "hub"),
    *("detokenizer", "tokenizer_files", "gguf_vocab", "tokenizer", "messages", "template_budget", "chat_output"),
    *("templates", "chat", "answer", "request", "block_pool", "scheduler", "faults", "inspect"),
    *("step_cost", "prompt_lookup", "speculative", "grammar", "thinking", "whole_file"),
    "openai",
}
HEAVY = {"torch", "transformers"}
DOORS = {"qwill.inspect"}
"""Light modules that also offer heavy things by name: imported for typing, and loaded when they are asked for."""

# Modules that unpickle, whatever they are called for.
UNPICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# Calls that run or unpickle what they are given. A name without a dot is the built-in.
BANNED_CALLS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "compile": "makes text into code",
    "__import__": "use importlib.import_module with a name of ours",
    "torch.load": "unpickles",
    "yaml.load": "builds any object; use yaml.safe_load",
    "yaml.unsafe_load": "builds any object; use yaml.safe_load",
    "yaml.full_load": "builds any object; use yaml.safe_load",
    "os.system": "goes through a shell",
    "os.popen": "goes through a shell",
    "subprocess.getoutput": "goes through a shell",
    "subprocess.getstatusoutput": "goes through a shell",
    "jinja2.Environment": "not sandboxed; use jinja2.sandbox.ImmutableSandboxedEnvironment",
    "jinja2.Template": "not sandboxed; use jinja2.sandbox.ImmutableSandboxedEnvironment",
}


def files_of(name: str) -> list[Path]:
    """The files of one module or package of ours."""
    single = ROOT / "qwill" / f"{name}.py"
    return [single] if single.exists() else sorted((ROOT / "qwill" / name).rglob("*.py"))


def module_name(path: Path) -> str:
    """The dotted name of a file of ours: qwill/ops/native.py -> qwill.ops.native."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every dotted name that is imported anywhere in the file, in functions and for typing too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "qwill":
            yield f"qwill.{node.attr}"  # after `import qwill`


def imports_of(path: Path) -> set[str]:
    """What one file of ours imports."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return set(imports(ast.parse(path.read_text(encoding="utf-8")), package))


def own(imported: str) -> str:
    """The module or package of ours that an imported name lies in; empty for somebody else's."""
    parts = imported.split(".")
    return parts[1] if parts[0] == "qwill" and len(parts) > 1 else ""


MODULES = sorted(
    path.stem if path.is_file() else path.name
    for path in (ROOT / "qwill").iterdir()
    if (path.suffix == ".py" and path.stem != "__init__") or any(path.glob("*.py"))
)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_above_itself(name: str) -> None:
    assert name in LEVEL, f"qwill/{name} is new: give it its place in ORDER"
    for path in files_of(name):
        for imported in imports_of(path):
            if own(imported) in ("", name, "__version__", "__file__"):
                continue
            what = f"{path.relative_to(ROOT)} imports {imported}"
            assert own(imported) in LEVEL, f"{what}: import from the module that defines it"
            assert LEVEL[own(imported)] < LEVEL[name], f"{what}, which stands below {name} in the reading order"


@pytest.mark.parametrize("name", [name for name in MODULES if (ROOT / "qwill" / name).is_dir()])
def test_the_files_of_a_package_do_not_import_each_other_in_a_circle(name: str) -> None:
    files = {module_name(path): path for path in files_of(name)}
    graph = {module: {inner(i, files) for i in imports_of(path)} - {"", module} for module, path in files.items()}
    done: set[str] = set()
    while ready := {module for module, needs in graph.items() if module not in done and needs <= done}:
        done |= ready
    assert done == set(graph), f"in a circle: {sorted(set(graph) - done)}"


def inner(imported: str, files: dict[str, Path]) -> str:
    """The file of the same package that an imported name lies in; empty for none."""
    return next((name for name in (imported, imported.rpartition(".")[0]) if name in files), "")


@pytest.mark.parametrize("name", sorted(TORCH_FREE & set(MODULES)))
def test_a_light_module_imports_nothing_heavy(name: str) -> None:
    for path in files_of(name):
        for imported in imports_of(path):
            assert imported.split(".")[0] not in HEAVY, f"{path.relative_to(ROOT)} imports {imported}"
            if module_name(path) in DOORS:
                continue  # a fresh Python shows, below, that it loads nothing heavy
            assert own(imported) in TORCH_FREE | {"", name, "__version__", "__file__"}, (
                f"{path.relative_to(ROOT)} imports {imported}, which is not light"
            )


def run_python(*arguments: str) -> str:
    """What a fresh Python prints."""
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_light_modules_load_nothing_heavy_in_a_fresh_python() -> None:
    names = [module_name(path) for name in sorted(TORCH_FREE) for path in files_of(name)]
    names += [module_name(path) for path in files_of("cli") if path.name == "__init__.py"]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    code += f"print(sorted(set(sys.modules) & {HEAVY!r}))"
    assert run_python("-c", code).strip() == "[]"


def test_importing_qwill_is_quick() -> None:
    code = "import time; start = time.perf_counter(); import qwill; print(time.perf_counter() - start)"
    assert min(float(run_python("-c", code)) for _ in range(5)) < 0.1


def dotted(node: ast.expr) -> str:
    """A name or a chain of attributes as text: torch.load. Empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


def aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> what was imported under it: {"Environment": "jinja2.Environment"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def banned(text: str) -> list[str]:
    """What a piece of source does that it must never do."""
    tree = ast.parse(text)
    names = aliases(tree)
    problems = [f"imports {name}" for name in imports(tree, "") if name.split(".")[0] in UNPICKLING]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, _, rest = dotted(node.func).partition(".")
            full = names.get(head, head) + ("." + rest if rest else "")
            full = full.replace("jinja2.environment.", "jinja2.").removeprefix("builtins.")
            problems += [f"calls {full}: {BANNED_CALLS[full]}"] if full in BANNED_CALLS else []
            problems += [f"passes {word.arg}" for word in node.keywords if banned_keyword(word)]
        elif isinstance(node, ast.Constant) and node.value == "trust_remote_code":
            problems.append("names trust_remote_code")
    return problems


def banned_keyword(word: ast.keyword) -> bool:
    """shell=…, allow_pickle=… unless plainly False, and trust_remote_code=… in any case."""
    off = isinstance(word.value, ast.Constant) and word.value.value is False
    return word.arg == "trust_remote_code" or (word.arg in ("shell", "allow_pickle") and not off)


@pytest.mark.parametrize("folder", ["qwill", "scripts", "benchmarks"])
def test_nothing_is_unpickled_or_run_from_text(folder: str) -> None:
    found = {path: banned(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path.relative_to(ROOT)): problems for path, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(f)",
        "from torch import load as read\nread(f)",
        "import torch as t\nt.load(f)",
        "eval('1')",
        "exec(code)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import numpy\nnumpy.load(f, allow_pickle=yes)",
        "import yaml\nyaml.load(f)",
        "import jinja2\njinja2.Environment()",
        "from jinja2 import Environment as E\nE()",
        "from jinja2.environment import Environment\nEnvironment()",
        "model(trust_remote_code=False)",
        "model(**{'trust_remote_code': True})",
    ],
)
def test_the_search_finds_what_is_banned(text: str) -> None:
    assert banned(text)


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import re\nre.compile('x')",
        "import torch\ntorch.compile(f)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
        "import safetensors.torch\nsafetensors.torch.load(data)",
    ],
)
def test_the_search_leaves_the_rest_alone(text: str) -> None:
    assert banned(text) == []
