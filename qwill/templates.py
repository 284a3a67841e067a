"""Chat templates, run in a sandbox with a budget: a template comes with a model, so it is a stranger's program.

Jinja's immutable sandbox stops a template from reaching Python. It does not stop one from using up time and memory,
so the syntax tree is changed before it is compiled: every loop step, output, comparison, call, operator, literal,
slice and filter reports to a `Budget`, which ends the render when it has used too much of

    processor time   of this thread, so that a busy machine does not fail honest templates
    characters       of all strings made and all output, because kept strings are memory
    size             of one list or dict with everything in it, so that no single operation can take long

Work between two reports is linear in values of bounded size; so the limits hold without a second process or thread,
which could be killed but would cost every render a start, and without tracing, which would slow down honest ones.
What could grow a value in one operation (repeat, power, replace, join, indent, format) is measured before it is done;
filters and methods that could, and that no chat template needs, are left out.

Configured as transformers configures Jinja; knows nothing of messages and tokens.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from qwill.errors import TemplateError
from qwill.template_budget import ENTRIES, Budget

__all__ = ["ChatTemplate", "compile_template"]

MAX_TEMPLATE_CHARACTERS = 64 * 1024  # the longest in use have a third of this
MAX_TEMPLATE_NODES = 8000  # of the syntax tree; Qwen3's template has 355
_BUDGET = "the budget"  # the render's Budget, in its context; no template can spell a name with a space


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS = _names(
    "abs attr capitalize count d default dictsort e escape first float int items last length list lower reverse safe"
    " string title truncate upper wordcount"
)
_ITEM_FILTERS = {"groupby": 0, "map": 99, "max": 1, "min": 1, "reject": 99, "rejectattr": 0, "select": 99}
_ITEM_FILTERS |= {"selectattr": 0, "sort": 2, "unique": 1}
"""The filters that do something with each item, and at which position an attribute can stand; 99: only by name."""
_LOOK_UP_CONTEXT = _names("map reject rejectattr select selectattr")
_SLOW_WITH_LONG_TEXTS = _names("lstrip rfind rindex rpartition rsplit rstrip strip")
"""Methods of text that take as long as the text's length times the argument's."""
_METHODS: dict[type, frozenset[str]] = {
    str: _names(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric"
        " isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex"
        " rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
    ),
    dict: _names("copy get items keys values"),
    list: _names("copy count index"),
    tuple: _names("count index"),
}
_REPORTS: dict[type[nodes.Node], str] = {
    nodes.Compare: "budget step",
    nodes.Test: "budget step",
    nodes.List: "budget made",
    nodes.Tuple: "budget made",
    nodes.Dict: "budget made",
    nodes.Filter: "budget made",
}
"""Which kinds of expressions report to the budget, and how."""


class ChatTemplate:
    """A compiled template. Made by `compile_template`; safe to use from several threads."""

    def __init__(self, template: jinja2.Template) -> None:
        self._template = template

    def render(self, variables: Mapping[str, Any], *, marker: str = "") -> str:
        """The text that the template makes of these JSON-like values.

        `marker` is a character that the JSON filter must never escape, even when asked for ASCII.

        Raises:
            TemplateError: when the template fails, refuses the values, or exceeds a limit.
        """
        budget = Budget(variables, marker)
        try:
            return self._template.render({**variables, _BUDGET: budget})
        except TemplateError:
            raise
        except RecursionError as error:
            raise TemplateError("the chat template calls itself without end") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template failed: {_message(error, marker)}") from error
        except Exception as error:  # whatever Python raises inside the template's expressions
            what = f"the chat template failed: {type(error).__name__}: {_message(error, marker)}"
            raise TemplateError(what, hint="is this kind of message what the model's template expects?") from error


def _message(error: Exception, marker: str) -> str:
    return str(error).replace(marker, "")[:500] if marker else str(error)[:500]


@functools.lru_cache(maxsize=16)
def compile_template(source: str) -> ChatTemplate:
    """Parse and compile a template; the result is kept, so that a second call costs nothing.

    Raises:
        TemplateError: when it is too long, nested too deeply, or no valid template.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateError(f"the chat template has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARACTERS}")
    environment = _environment()
    try:
        tree = environment.parse(source)
        if _count_nodes(tree) > MAX_TEMPLATE_NODES:
            raise TemplateError(f"the chat template has more than {MAX_TEMPLATE_NODES} syntax nodes")
        tree = _Instrument(environment).visit(tree)
        template = jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"not a valid chat template: {error.message}", where=f"line {error.lineno}") from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template is nested too deeply") from error
    except (SyntaxError, ValueError, TypeError) as error:
        raise TemplateError(f"not a valid chat template: {error!s:.200}") from error
    return ChatTemplate(template)


def _count_nodes(tree: nodes.Node) -> int:
    below = [tree]
    for node in below:
        below.extend(node.iter_child_nodes())
    return len(below)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with every operation that a template repeats or that can grow a value under the budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if not callable(value) or type(obj).__module__.startswith("jinja2."):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS.items())

    def wrap_str_format(self, value: Any) -> None:
        """No special case for str.format: it is not among the allowed methods."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context[_BUDGET]
        budget.check_operator(operator, left, right)
        return budget.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget: Budget = __context[_BUDGET]
        given = (*args, *(value for name, value in kwargs.items() if not name.startswith("_")))
        for value in given:
            if not (isinstance(value, Namespace) and isinstance(__obj, Macro)):
                budget.stored(value)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ == "replace":
            budget.check_replace(owner, *args[:2])
        if isinstance(owner, str) and __obj.__name__ == "join":
            args = (budget.joinable(owner, *args),)
        if isinstance(owner, str) and __obj.__name__ in _SLOW_WITH_LONG_TEXTS:
            budget.check_needles(given)
        if isinstance(__obj, LoopContext):
            args = tuple(budget.counted(value) for value in args)
        return budget.made(super().call(__context, __obj, *args, **kwargs), copied=isinstance(owner, str))

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return _budget_of(args, kwargs).made(super().call_filter(name, value, *args, **kwargs))

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget_of(args, kwargs).step()
        return super().call_test(name, value, *args, **kwargs)


def _budget_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Budget:
    """`call_filter` and `call_test` are (name, value, args, kwargs, context, …)."""
    context: Context = kwargs["context"] if "context" in kwargs else args[2]
    budget: Budget = context[_BUDGET]
    return budget


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what the assistant wrote, for training; it changes no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Instrument(NodeTransformer):
    """Wraps the expressions that cost something in filters that report to the budget."""

    def __init__(self, environment: _Sandbox) -> None:
        self._environment = environment

    def _wrap(self, node: nodes.Node, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=self._environment)

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.Output):
            node.nodes = [self._wrap(child, "budget emit") for child in node.nodes]
        elif isinstance(node, nodes.For):
            node.iter = self._wrap(node.iter, "budget counted")
        elif isinstance(node, nodes.Assign):
            if isinstance(node.target, nodes.NSRef) or node.target.find(nodes.NSRef):
                node.node = self._wrap(node.node, "budget stored")
        elif isinstance(node, nodes.Concat):
            values = nodes.List(node.nodes, lineno=node.lineno, environment=self._environment)
            return self._wrap(values, "budget concat")
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self._wrap(node, "budget sliced")
        elif isinstance(node, tuple(_REPORTS)) and getattr(node, "ctx", "load") == "load":
            return self._wrap(node, _REPORTS[type(node)])
        return node


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False
    )
    environment.filters = {name: FILTERS[name] for name in _FILTERS}
    environment.filters |= {name: _item_filter(name, place) for name, place in _ITEM_FILTERS.items()}
    environment.filters |= {
        "format": _format,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "tojson": _tojson,
        "trim": _trim,
    }
    for name in ("concat", "counted", "emit", "made", "sliced", "step", "stored"):
        environment.filters[f"budget {name}"] = _reporter(name)
    del environment.globals["lipsum"]
    environment.globals |= {
        "dict": _new_dict,
        "raise_exception": _raise_exception,
        "range": _range,
        "strftime_now": _strftime_now,
    }
    return environment


def _reporter(name: str) -> Any:
    report = getattr(Budget, name)
    return pass_context(lambda context, value: report(context[_BUDGET], value))


def _item_filter(name: str, place: int) -> Any:
    """Jinja's filter of this name, with a short attribute and a report for each item; a lazy one stays lazy."""

    def checked(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context[_BUDGET]
        for attribute in (*args[place : place + 1], kwargs.get("attribute")):
            budget.check_attribute(attribute)
        first = context if name in _LOOK_UP_CONTEXT else context.environment
        return FILTERS[name](first, budget.steps(value) if value else value, *args, **kwargs)

    return pass_context(checked)


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > ENTRIES:
        raise jinja2.TemplateError(f"range: more than {ENTRIES} numbers")
    return numbers


@pass_context
def _new_dict(context: Context, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    if args and not isinstance(args[0], Mapping):
        args = (context[_BUDGET].steps(args[0]), *args[1:])
    return dict(*args, **kwargs)


def _strftime_now(form: str) -> str:
    if len(form) > 200 or re.search(r"%\W*\d\d", form):
        raise jinja2.TemplateError("strftime_now: the format is too long, or names a width")
    return datetime.now().strftime(form)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    *,
    sort_keys: bool = False,
) -> str:
    budget: Budget = context[_BUDGET]
    budget.check_json(value, indent, separators)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    return re.sub(r"[^\x00-\x7f]", lambda match: _ascii(match[0], budget.marker), text)


def _ascii(character: str, marker: str) -> str:
    return character if character == marker else json.dumps(character)[1:-1]


@pass_context
def _replace(context: Context, value: Any, old: str, new: str, count: int | None = None) -> Any:
    context[_BUDGET].check_replace(str(value), old, new)
    return FILTERS["replace"](context.eval_ctx, value, old, new, count)


@pass_context
def _trim(context: Context, value: Any, chars: str | None = None) -> Any:
    context[_BUDGET].check_needles([chars])
    return FILTERS["trim"](value, chars)


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        context[_BUDGET].check_attribute(attribute)
        value = FILTERS["map"](context, value, attribute=attribute)
    return str(d).join(context[_BUDGET].joinable(str(d), value))


@pass_context
def _indent(context: Context, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    context[_BUDGET].check_indent(value, width)
    return FILTERS["indent"](value, width, first, blank)


@pass_context
def _format(context: Context, value: str, *args: Any, **kwargs: Any) -> Any:
    context[_BUDGET].check_format(value, kwargs or args)
    return FILTERS["format"](value, *args, **kwargs)


def _round(value: float, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > 100:
        raise jinja2.TemplateError("round: the precision is out of range")
    return FILTERS["round"](value, precision, method)
