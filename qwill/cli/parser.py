"""Command lines are parsed here, by cyclopts, and its errors become ours. Knows commands only by name.

Precedence of values: flag, environment, ./qwill.toml, the user's config file.
"""

from __future__ import annotations

import importlib
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError
from cyclopts.config import Dict

from qwill.cli.layers import Layer, read_layers
from qwill.errors import QwillError, UsageError

__all__ = ["run_command"]

EPILOGUE = (
    "Every flag can also be given as QWILL_FLAG_NAME in the environment, or as flag_name = value in ./qwill.toml or "
    "the user's config file; qwill doctor --config shows what is in force."
)


def run_command(name: str, words: list[str]) -> int:
    """Parse the words after `qwill NAME`, run the command and return its exit code.

    Raises:
        UsageError: the words do not fit the command.
    """
    app = _app(name)
    try:
        command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _usage_error(name, error) from error
    return command(*bound.args, **bound.kwargs) or 0


def _app(name: str) -> App:
    app = App(
        name=f"qwill {name}",
        config=[_values(layer) for layer in read_layers()],
        version_flags=(),
        help_format="plaintext",
        help_epilogue=EPILOGUE,
    )
    app["--help"].show = False
    importlib.import_module(f"qwill.cli.commands.{name}").register(app)
    return app


def _values(layer: Layer) -> Dict:
    """A layer as the parser's source of values; keys of other commands' flags are passed over."""
    return Dict(data=layer.values, source=layer.source, use_commands_as_keys=False, allow_unknown=True)


def _usage_error(name: str, error: CycloptsError) -> UsageError:
    cause: Any = error.__cause__
    if isinstance(cause, QwillError):
        return UsageError(cause.what, where=_place(error) or cause.where, hint=cause.hint)
    what, _, suggestion = str(error).strip().partition(" Did you mean ")
    suggestion = suggestion.partition("?")[0].strip('"')
    what, hint = what[:1].lower() + what[1:], f"qwill {name} --help lists what there is"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        given = error.keyword or next((token.keyword for token in error.argument.tokens), None)
        what = f"{given} needs a value" if given else f"{error.argument.name.lstrip('-').upper()} is missing"
        hint = f"a value that begins with a dash is given as {given}=-value" if given else hint
    if isinstance(error, UnknownOptionError) and not suggestion:
        hint += "; put -- before a prompt that begins with a dash"
    return UsageError(what.rstrip("."), hint=f"did you mean {suggestion}?" if suggestion else hint)


def _place(error: CycloptsError) -> str:
    """The flag, variable or key whose value was refused, and the config file it stands in."""
    tokens = error.argument.tokens if error.argument is not None else []
    token = getattr(error, "token", None) or (tokens[0] if tokens else None)
    if token is None or not token.keyword:
        return ""
    inside = f" in {token.source}" if token.source not in ("", "cli") else ""
    return f"{token.keyword}{inside}"
