"""Write docs/reference/ from the code: `python -m scripts.reference`. A test compares the committed pages with it.

What a page says stands in the code, each thing in one place: fields of settings, flags, environment variables, tables
of formats, and some modules' docstrings. Here is only how that is laid out.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import Argument

from qwill.cli import ALIASES, COMMANDS
from qwill.cli.flags import NO_REAL_BOUND, NOT_ON_THE_COMMAND_LINE
from qwill.cli.layers import PREFIX, known_keys
from qwill.cli.variables import VARIABLES
from qwill.config import ARCHITECTURES
from qwill.formats.dequantize import DEQUANTIZABLE
from qwill.formats.dtypes import BLOCKS, GGUF_TYPES, GGUF_UNSUPPORTED, SAFETENSORS_TYPES
from qwill.formats.weight_formats import FORMATS, WeightFormat
from qwill.intake import ChatOptions, RequestOptions
from qwill.quantization import GGUF_FORMATS
from qwill.sampling_params import SamplingParams, StructuredOutputsParams
from qwill.settings import EngineSettings, Setting, settings_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
HEAD = "*A reference page, made from the code by `python -m scripts.reference`: change the code, not the page.*\n"

SHARED = {"Sampling": SamplingParams, "Model and machine": EngineSettings}
"""Group of flags -> the settings that it comes from, which are told once, on their own page."""

OWNERS: dict[type[Any], str] = {
    EngineSettings: "How a model is found, loaded and run: keywords of `qwill.LLM` and `qwill.AsyncLLM`, and flags.",
    SamplingParams: "How one request is sampled and when it stops: the fields of `qwill.SamplingParams`, and flags of "
    "`run` and `chat`. A model's `generation_config.json` goes before these defaults where none is given.",
    StructuredOutputsParams: "What an answer must look like: `SamplingParams.structured_outputs`; one field is given.",
    RequestOptions: "How requests are handled: keywords of `generate` and `stream`.",
    ChatOptions: "Keywords of `chat` and `stream_chat`, besides those of `RequestOptions`.",
}


def main() -> int:
    """Write every page. Returns the exit code."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """File name -> text of each page."""
    return {
        "cli.md": cli_page(),
        "environment.md": environment_page(),
        "formats.md": formats_page(),
        "settings.md": settings_page(),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a bar in a cell is escaped, and so are the signs of a tag."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)]) + "\n"


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*") for part in parts)


def codes(names: Iterable[str]) -> str:
    """Names as code."""
    return " ".join(f"`{name}`" for name in names)


def settings_page() -> str:
    """Every field of the settings that the Python API takes."""
    text = f"# Settings\n\n{HEAD}\nA field's flag is its name with dashes; others stand behind it.\n"
    for owner, about in OWNERS.items():
        inherited = set().union(*(settings_of(base) for base in owner.__bases__ if dataclasses.is_dataclass(base)))
        rows = [field_row(owner, name, it) for name, it in settings_of(owner).items() if name not in inherited]
        text += f"\n## {owner.__name__}\n\n{about}\n\n" + table(["Field", "Default", "Allowed", "Meaning"], rows)
    return text


def field_row(owner: type[Any], name: str, about: Setting) -> list[str]:
    """One field: its name and its flag's other names, default, range, meaning."""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    kind = str(field.type).removesuffix(" | None")
    default = "–" if field.default in (None, (), "") else f"`{field.default}`"
    aliases = about.aliases
    if owner in SHARED.values() and kind == "bool" and field.default is True:
        aliases = (*aliases, "--no-" + name.replace("_", "-"))
    shown = f"`{name}`" + (f" ({codes(aliases)})" if aliases else "")
    return [shown, default, f"{allowed_values(kind, about)} {about.unit}".strip(), about.help]


def allowed_values(kind: str, about: Setting) -> str:
    """What a field may be, where that is not just anything; a bound that only catches nonsense is left out."""
    if about.low is not None and about.high is not None and about.high >= NO_REAL_BOUND:
        return "any whole number" if about.low < 0 else f"{about.low:g} or more"
    bounded = about.choices or about.low is not None or kind == "bool"
    return about.allowed(kind).removeprefix("one of ") if bounded else ""


def cli_page() -> str:
    """Every command with its flags."""
    names = " · ".join(f"[{name}](#qwill-{name})" for name in COMMANDS)
    doc = inspect.getdoc(importlib.import_module("qwill.cli")) or ""
    rules = " ".join(doc.split("\n\n")[1].split()).partition(" `qwill --help`")[0]
    aliases = ", ".join(f"`{other}` is `{name}`" for other, name in ALIASES.items())
    text = f"# The command line\n\n{HEAD}\n{names}\n\n{rules} {aliases}.\n\n"
    text += (
        "Each flag may also come from the [environment](environment.md) or a config file. Every command has "
        "`--verbose` (`-v`), `--quiet` (`-q`) and `--help`.\n"
    )
    return text + "".join(command_section(name) for name in COMMANDS)


def command_section(name: str) -> str:
    """One command, with those below it."""
    app = App(name=f"qwill {name}", version_flags=(), help_flags=())
    importlib.import_module(f"qwill.cli.commands.{name}").register(app)
    title = f"\n## qwill {name}\n"
    if app.default_command is not None:
        return title + call_section(f"qwill {name}", app)
    below = [f"\n### qwill {name} {sub}\n{call_section(f'qwill {name} {sub}', app[sub])}" for sub in app]
    return f"{title}\n{app.help}\n" + "".join(below)


def call_section(call: str, app: App) -> str:
    """How a command is called, its own flags, and where the others are told."""
    arguments = [argument for argument in app.assemble_argument_collection() if argument.name != "*"]
    places = [argument for argument in arguments if group_of(argument) == "Arguments"]
    words = [place_of(argument) for argument in places]
    text = f"\n{inspect.cleandoc(app.help or '')}\n\n```text\n{' '.join([call, *words])} [flags]\n```\n"
    common = ("--verbose", "--quiet")
    own = [each for each in arguments if group_of(each) not in SHARED and each.name not in common]
    rows = [[shown_names(each, places), " ".join((each.parameter.help or "").split())] for each in own]
    text += "\n" + table(["Argument or flag", "Meaning"], rows) if rows else ""
    return text + "".join(shared_flags(arguments))


def group_of(argument: Argument) -> str:
    """The group under which the help page lists it."""
    groups: Any = argument.parameter.group or ()
    return next((str(getattr(group, "name", group)) for group in groups), "")


def place_of(argument: Argument) -> str:
    """How an argument stands in a call: MODEL, [MODEL] where it may be left out, WORD… where it may be several."""
    word = argument.name.lstrip("-").upper()
    if argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"[{word}…]"
    return word if argument.required else f"[{word}]"


def shown_names(argument: Argument, places: list[Argument]) -> str:
    """A flag with its other names; an argument by its place, and the flag that it may be given as."""
    if argument not in places:
        return codes(argument.names)
    as_flags = [name for name in argument.names if name.startswith("-")]
    return codes([argument.name.lstrip("-").upper(), *as_flags])


def shared_flags(arguments: list[Argument]) -> Iterator[str]:
    """Which flags come from settings that have a page of their own."""
    for group, owner in SHARED.items():
        given = [argument.name for argument in arguments if group_of(argument) == group]
        link = f"[{owner.__name__}](settings.md#{owner.__name__.lower()})"
        if len(given) == len(settings_of(owner).keys() - NOT_ON_THE_COMMAND_LINE):
            yield f"\nAlso every field of {link} as a flag.\n"
        elif given:
            yield f"\nOf {link} also: {codes(given)}.\n"


def environment_page() -> str:
    """Every variable that is read."""
    settings = codes(PREFIX + key.upper() for key in known_keys())
    rows = [[f"`{name}`", meaning] for name, meaning in VARIABLES.items()]
    return (
        f"# Environment variables and config files\n\n{HEAD}\n"
        "Flags go first, then the environment, then `./qwill.toml` in the working folder, then `qwill/config.toml` "
        "in the user's config folder, then the model's own defaults. `qwill doctor --config` shows what is in force, "
        "and where from. In Python, `qwill.LLM` takes settings as keywords only; the variables of the first table "
        "below count there too.\n\n"
        f"## Variables\n\n{table(['Variable', 'Meaning'], rows)}\n"
        "## Flags as variables\n\n"
        "On the command line, these have the meaning of the flag of that name; in a config file, the key is the same "
        f"in small letters, without the prefix. `QWILL_MODEL` stands for the argument MODEL.\n\n{settings}\n"
    )


def formats_page() -> str:
    """Number formats, and how files are laid out."""
    sections = [
        ("Models", f"`model_type` or GGUF architecture: {codes(ARCHITECTURES)}. All others are refused by name."),
        ("Number formats of checkpoints", checkpoint_formats()),
        ("Formats in memory", memory_formats()),
        ("How packed weights lie in memory", docstring("qwill.formats.weight_formats")),
        ("Quantized folders, by `qwill quantize`", docstring("qwill.formats.packed")),
        ("Tokenizer files", docstring("qwill.tokenizer_files")),
        ("Batch files", docstring("qwill.openai.batch")),
    ]
    return f"# Formats\n\n{HEAD}" + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections)


def checkpoint_formats() -> str:
    """What weights may be stored as in files, and what becomes of it."""
    rows = [checkpoint_row(name) for name in BLOCKS if name in DEQUANTIZABLE]
    other = sorted(SAFETENSORS_TYPES - DEQUANTIZABLE)
    refused = [name for _, name in sorted(GGUF_UNSUPPORTED.items())]
    head = ["Name", "Files", "Weights per block", "Bits per weight in the file", "Runs as", "Bits per weight in memory"]
    return (
        "A quantized GGUF tensor is repacked without loss: every weight keeps its value to the bit.\n\n"
        + table(head, rows)
        + f"\nSafetensors headers may also name {codes(other)}; weights of these types are refused, `U8` aside where "
        f"it holds packed matrices, as below. GGUF types that are known and refused by name: {codes(refused)}."
    )


def checkpoint_row(name: str) -> list[str]:
    elements, size = BLOCKS[name]
    in_files = [
        kind for kind, known in (("safetensors", SAFETENSORS_TYPES), ("GGUF", GGUF_TYPES.values())) if name in known
    ]
    kept = GGUF_FORMATS.get(name)
    runs_as = [f"`{kept.name}`", bits_per_weight(kept)] if kept else ["as `dtype` and `quant` say", "–"]
    return [f"`{name}`", ", ".join(in_files), str(elements), f"{8 * size / elements:g}", *runs_as]


def memory_formats() -> str:
    """The packed formats."""
    rows = [
        [
            f"`{each.name}`",
            "float" if each.is_dense else f"{each.bits}-bit codes, zero at {each.zero}",
            "–" if each.is_dense else f"{each.scales_per_group} {'int8' if each.super_scales else 'fp16'}",
            "yes" if each.has_minimum else "–",
            bits_per_weight(each),
        ]
        for each in FORMATS.values()
    ]
    head = ["Name", "Weights", "Scales for 32 inputs", "Minimum", "Bits per weight"]
    return "For matrices of whole blocks; filling up to 16 rows and 32 inputs comes on top.\n\n" + table(head, rows)


def bits_per_weight(format: WeightFormat) -> str:
    """Without padding."""
    return f"{8 * format.nbytes(16, 256) / (16 * 256):g}"


def docstring(module: str) -> str:
    """A module's own words, as they stand there."""
    words = inspect.getdoc(importlib.import_module(module))
    return f"From [{module}](../../{module.replace('.', '/')}.py):\n\n```text\n{words}\n```"


if __name__ == "__main__":
    sys.exit(main())
