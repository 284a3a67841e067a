"""Settings become flags: each field of a settings dataclass is one flag, one QWILL_* variable, one config-file key.

Help, range, unit and default come from the field and are written nowhere else. What a command receives is a
dictionary with only the values that somebody gave, so that the model's own defaults stay in force for the rest.
Must not know any command.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

from cyclopts import Group, Parameter

from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings, Setting, check_settings, parse_count, setting, settings_of, shown

if TYPE_CHECKING:
    from cyclopts import Token

__all__ = [
    "FETCHING",
    "FLAG_OWNERS",
    "AnswerFlags",
    "BatchFlags",
    "BenchFlags",
    "ChatFlags",
    "CommonFlags",
    "DoctorFlags",
    "EvalFlags",
    "ExplainFlags",
    "InspectFlags",
    "Model",
    "Part",
    "QuantizeFlags",
    "RemoveFlags",
    "ReportFlags",
    "ResultFlags",
    "RunFlags",
    "TraceFlags",
    "VerifyFlags",
    "check_given",
    "flags_of",
    "picked",
]

Model = Annotated[
    str,
    Parameter(
        name=("--model", "-m"),
        help="a catalog name (qwen3-0.6b), org/name[@revision], org/name:Q4_K_M, a folder or a .gguf file",
        group="Arguments",
    ),
]


@dataclass(frozen=True)
class CommonFlags:
    """Flags of every command."""

    verbose: bool = setting(False, "show more: timings, and the traceback of an error", aliases=("-v",))
    quiet: bool = setting(False, "no progress bars and no notices", aliases=("-q",))


@dataclass(frozen=True)
class ReportFlags(CommonFlags):
    """Flags of the commands that report something."""

    json: bool = setting(False, "print JSON instead of text")


@dataclass(frozen=True)
class AnswerFlags:
    """How `run` and `chat` talk with the model and show its answer."""

    system: str | None = setting(None, "system prompt", aliases=("-s",))
    think: bool | None = setting(None, "let the model think first, or not; by default as the model's template does")
    raw_special: bool = setting(False, "read control tokens such as <|im_end|> in what you type as control tokens")
    stats: bool = setting(False, "show token counts, speed and why the answer ended")
    stream: bool = setting(True, "show the answer as it is written")
    markdown: bool = setting(True, "lay out markdown when the output is a terminal")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class RunFlags(ReportFlags):
    """Flags of `run` alone."""

    raw: bool = setting(False, "continue the prompt as it is, without the chat template")
    json_schema: str | None = setting(None, "file with a JSON schema that the answer follows")


@dataclass(frozen=True)
class ExplainFlags(ReportFlags):
    """Flags of `explain` alone."""

    output: str | None = setting(None, "file of the page; report.html by default", aliases=("-o",))
    raw: bool = setting(False, "continue the prompt as it is, without the chat template")


@dataclass(frozen=True)
class ChatFlags(CommonFlags):
    """Flags of `chat` alone."""

    history: bool = setting(True, "remember typed lines in the state folder")


@dataclass(frozen=True)
class RemoveFlags(ReportFlags):
    """Flags of `rm` alone."""

    yes: bool = setting(False, "do not ask", aliases=("-y",))


@dataclass(frozen=True)
class InspectFlags(ReportFlags):
    """Flags of `inspect` alone."""

    layer: int | None = setting(None, "show one layer in full", low=0, high=9999)
    tensors: bool = setting(False, "list every tensor with its shape, number format and bytes")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class VerifyFlags(ReportFlags):
    """Flags of `verify` alone."""

    quick: bool = setting(False, "read only the headers: leave out hashes and values")


@dataclass(frozen=True)
class BatchFlags:
    """What `batch` reads and writes."""

    input_file: str | None = setting(
        None, "file of requests, one in each line, as for OpenAI's batches; - is standard input", aliases=("-i",)
    )
    output_file: str | None = setting(
        None,
        "file of results, in which an earlier run that was stopped is gone on with; - is standard output",
        aliases=("-o",),
    )
    served_model_name: tuple[str, ...] = setting(
        (), "what the requests may call the model, and the results do; by default MODEL. May be given several times"
    )


@dataclass(frozen=True)
class ResultFlags(ReportFlags):
    """Flags of `bench`, `eval` and `trace`, whose results are worth keeping."""

    output: str | None = setting(None, "also write the result, with all details, to this JSON file", aliases=("-o",))


@dataclass(frozen=True)
class BenchFlags(ResultFlags):
    """Flags of `bench` alone."""

    chart: str | None = setting(None, "also draw the result into this .png, .svg or .pdf file")


@dataclass(frozen=True)
class EvalFlags(ResultFlags):
    """Flags of `eval` alone."""

    text: str | None = setting(None, "file of plain UTF-8 text to evaluate on")


@dataclass(frozen=True)
class TraceFlags(ResultFlags):
    """Flags of `trace` alone. QWILL_OPS chooses the back end and `tensors` is a flag of `inspect`, so two have other
    names here.
    """

    list_ops: bool = setting(False, "list every op of every step instead of sums", aliases=("--ops",))
    step: int | None = setting(None, "list the ops of one step", low=0, high=2**31)
    layer: int | None = setting(None, "list the ops of one layer", low=0, high=9999)
    perfetto: str | None = setting(None, "also write a trace for the viewers of Perfetto and Chrome to this file")
    keep: str | None = setting(
        None, "what to keep, with commas between: residuals, attention, mlp; --save-tensors says where"
    )
    save_tensors: str | None = setting(None, "write what is kept to this .safetensors file")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class QuantizeFlags(ReportFlags):
    """Flags of `quantize` alone."""

    force: bool = setting(False, "replace a model that has the new folder's name")


@dataclass(frozen=True)
class DoctorFlags(ReportFlags):
    """Flags of `doctor` alone."""

    network: bool = setting(False, "also try to reach each source of models")
    config: bool = setting(False, "show every setting, its value and where the value comes from")


@dataclass(frozen=True)
class Part:
    """Some of a dataclass's fields, for a command to which the others mean nothing."""

    owner: type[Any]
    names: tuple[str, ...]


FETCHING = Part(EngineSettings, ("source", "revision", "endpoint", "offline"))
"""How a model is fetched."""

GROUPS: dict[type[Any], Group] = {
    AnswerFlags: Group("Answer", sort_key=1),
    BatchFlags: Group("Batch", sort_key=1),
    SamplingParams: Group(
        "Sampling", sort_key=2, help="The model's own generation_config.json goes before the defaults given here."
    ),
    EngineSettings: Group("Model and machine", sort_key=3),
}
GENERAL = Group("General", sort_key=4)

FLAG_OWNERS = (
    *(
        *GROUPS,
        RunFlags,
        ExplainFlags,
        ChatFlags,
        BatchFlags,
        RemoveFlags,
        InspectFlags,
        VerifyFlags,
        BenchFlags,
        EvalFlags,
        QuantizeFlags,
        TraceFlags,
    ),
    DoctorFlags,
)
"""Every dataclass whose fields a config file and the environment may set."""

NO_REAL_BOUND = 2**20

NOT_ON_THE_COMMAND_LINE = {"n", "structured_outputs"}
"""One prompt, one answer: several answers are for the Python API. `run` has --json-schema instead."""


class IdAndNumber(str):
    """ID=NUMBER, for the option parser: where pydantic is loaded, it would hold what we make of it against `str`."""


def flags_of(*owners: type[Any] | Part) -> Any:
    """A type that makes the option parser accept one flag per field of `owners`, and give those that were given.

    Use it as the annotation of a keyword parameter with default None.
    """
    fields: dict[str, Any] = {}
    for part in owners:
        owner = part.owner if isinstance(part, Part) else part
        group = GROUPS.get(owner, GENERAL)
        hints = get_type_hints(owner)
        for name, about in settings_of(owner).items():
            wanted = name in part.names if isinstance(part, Part) else name not in NOT_ON_THE_COMMAND_LINE
            if wanted:
                fields[name] = _flag(owner, name, about, hints[name], group)
    flags = TypedDict("Flags", fields, total=False)  # type: ignore[misc]
    return Annotated[flags, Parameter(name="*")]


def _flag(owner: type[Any], name: str, about: Setting, hint: Any, group: Group) -> Any:
    kind = _without_none(hint)
    names = ("--" + name.replace("_", "-"), *about.aliases)
    parameter = Parameter(
        name=names,
        help=_help(owner, name, about),
        group=group,
        negative=None if kind is bool and _has_negative(owner, name) else "",
        converter=_converter(kind, about),
        validator=_validator(owner, name),
        show_choices=False,
        metavar="ID=NUMBER" if kind == dict[int, float] else None,
        allow_leading_hyphen=kind in (int, float) or owner is BatchFlags,
    )
    return Annotated[tuple[IdAndNumber, ...] if kind == dict[int, float] else kind, parameter]


def _without_none(hint: Any) -> Any:
    """`int | None` -> `int`: a flag is either given or not."""
    kinds = [kind for kind in getattr(hint, "__args__", ()) if kind is not type(None)]
    return kinds[0] if type(None) in getattr(hint, "__args__", ()) else hint


def _has_negative(owner: type[Any], name: str) -> bool:
    """--no-x is offered where it says something: x is on by default, or left to the model."""
    return _default(owner, name) is not False


def _default(owner: type[Any], name: str) -> Any:
    return next(field.default for field in dataclasses.fields(owner) if field.name == name)


def _help(owner: type[Any], name: str, about: Setting) -> str:
    facts = [f"{_range(about)} {about.unit}".strip()] if about.choices or about.unit else []
    if not facts and about.low is not None:
        facts.append(_range(about))
    default = _default(owner, name)
    if isinstance(default, bool):
        facts += ["default on"] if default else []
    elif default is not None and default != ():
        several = default if isinstance(default, tuple) else (default,)
        facts.append("default " + ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in several))
    return about.help + (f" [{'; '.join(facts)}]" if facts else "")


def _range(about: Setting) -> str:
    """What is allowed; a bound that is only there to catch nonsense is not worth reading."""
    if not about.choices and about.low is None and about.high is None:
        return ""
    if about.high is not None and about.high >= NO_REAL_BOUND:
        return f"{about.low:g} or more"
    return about.allowed().removeprefix("one of ")


def _converter(kind: Any, about: Setting) -> Callable[[Any, Sequence[Token]], Any] | None:
    if kind is int and about.unit in ("tokens", "bytes"):
        return lambda _type, tokens: parse_count(tokens[0].value)
    if kind is int:
        return lambda _type, tokens: _whole_number(tokens[0].value)
    if kind == tuple[int, ...]:
        return lambda _type, tokens: tuple(_whole_number(token.value) for token in tokens)
    if kind == dict[int, float]:
        return lambda _type, tokens: dict(_id_and_bias(token.value) for token in tokens)
    return None


def _whole_number(text: str) -> int:
    """The option parser would round 1.9 to 2 without a word."""
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text.strip()):
        raise SettingError(f"{shown(text)} is not a whole number", hint="digits alone, for example 7")
    return int(text)


def _id_and_bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    try:
        if equals:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise SettingError(f"{text[:100]!r} is not a token id and a number", hint="for example 151645=-100")


def _validator(owner: type[Any], name: str) -> Callable[[Any, Any], None]:
    """The field's own check, made when the flag is read, so that the error can say where the value came from."""

    def validate(_type: Any, value: Any) -> None:
        owner(**{name: value})

    return validate


def picked(given: dict[str, Any] | None, owner: type[Any] | Part) -> dict[str, Any]:
    """The given values that are fields of `owner`."""
    names = owner.names if isinstance(owner, Part) else settings_of(owner)
    return {name: value for name, value in (given or {}).items() if name in names}


def check_given(given: dict[str, Any] | None, *owners: type[Any]) -> None:
    """Check that the given values also fit together, before anything slow is done.

    Raises:
        SettingError: names the field and what is allowed.
    """
    for owner in owners:
        owner(**picked(given, owner))
