"""The sandbox: renders what transformers' sandbox renders, lets nothing out, and ends what would never end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qwill import template_budget
from qwill.errors import TemplateError
from qwill.templates import MAX_TEMPLATE_CHARACTERS, compile_template

VARIABLES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be <b>brief</b> & kind."},
        {"role": "user", "content": "你好\n\n  two lines\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nok", "n": 3, "list": [3, 1, 2], "none": None},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"é": [1.5, True, None, "\u2028"]}}}],
    "add_generation_prompt": True,
}

SNIPPETS = (Path(__file__).parent / "data" / "template_snippets.jinja").read_text().split("\n========\n")


def render(source: str, **variables: Any) -> str:
    return compile_template(source).render({**VARIABLES, **variables})


@pytest.mark.parametrize("source", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_template_renders_as_in_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation, others = VARIABLES["messages"], {k: v for k, v in VARIABLES.items() if k != "messages"}
    (expected,), _ = render_jinja_template([conversation], chat_template=source, **others)
    assert render(source, documents=None) == expected


def test_the_time_of_day_is_given() -> None:
    assert render("{{ strftime_now('%Y-%m-%d') }}") == time.strftime("%Y-%m-%d")


def test_a_compiled_template_is_kept() -> None:
    assert compile_template("{{ 1 }}") is compile_template("{{ 1 }}")


def test_a_templates_own_refusal_is_told() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("ascii_only", ["", "ensure_ascii=True"])
def test_the_marker_is_never_escaped(ascii_only: str) -> None:
    source = "{{ tools | tojson(" + ascii_only + ") }}"
    text = compile_template(source).render({"tools": ["<\ue000b\\ue000é😀"]}, marker="\ue000")
    assert text.replace("\ue000", "") == json.dumps(["<b\\ue000é😀"], ensure_ascii=bool(ascii_only))


SHELL = "os.popen('touch CANARY').read()"
ESCAPES = [
    "{{ cycler.__init__.__globals__." + SHELL + " }}",
    "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
    "{{ joiner.__init__.__globals__." + SHELL + " }}",
    "{{ namespace.__init__.__globals__." + SHELL + " }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages | attr('__class__') | attr('__mro__') }}",
    "{{ ''|attr('_'~'_class_'~'_') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ (['{0.__class__}'] | map(attribute='format') | first)(1) }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ messages | map('attr', '__class__') | list }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__." + SHELL + " }}",
    "{{ dict.__init__.__globals__ }}{{ range.__self__ }}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{{ loop._iterable }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{{ messages.append(1) }}{{ messages[0].update({'role': 'x'}) }}",
    "{% set messages[0].role = 'x' %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ (1).__class__.__base__.__subclasses__() }}{{ 1.0.real.__class__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ messages | map('budget emit') | map(attribute='__class__') | list }}",
    "{{ caller.__globals__ }}{{ environment }}{{ context }}{{ the_budget }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_an_escape_is_refused_or_inert(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = json.dumps(VARIABLES)
    try:
        text = render(source)
    except TemplateError:
        text = ""
    assert text.strip() in ("", "[]", "[Undefined]", "[Undefined, Undefined, Undefined]")
    assert json.dumps(VARIABLES) == before
    assert os.listdir() == []


NS = "{% set ns = namespace(x='aaaaaaaaaa', l=[1], i=99999999, y=[1]) %}"


def repeated(body: str, show: str = "{{ ns.x | length }}") -> str:
    return NS + "{% for i in range(60) %}" + body + "{% endfor %}" + show


GROWING = {
    "repeat": "{{ 'a' * 300000000 }}",
    "repeat, never shown": "{{ ('a' * 300000000) | length }}",
    "repeat a list": "{{ ([1] * 300000000) | length }}",
    "repeat from the left": "{{ 300000000 * 'a' }}",
    "double with ~": repeated("{% set ns.x = ns.x ~ ns.x %}"),
    "double with +": repeated("{% set ns.x = ns.x + ns.x %}"),
    "double a block": repeated("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "double in a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + repeated("{% set ns.x = m(ns.x) %}"),
    "double with join": repeated("{% set ns.x = [ns.x, ns.x] | join %}"),
    "double with str.join": repeated("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    "square with replace": repeated("{% set ns.x = ns.x | replace('a', ns.x) %}"),
    "square with str.replace": repeated("{% set ns.x = ns.x.replace('', ns.x) %}"),
    "escape": repeated("{% set ns.x = ns.x | replace('a', '&') | e | string | replace('&', 'a') %}"),
    "capitals": repeated("{% set ns.x = ns.x.replace('S', 'ß').replace('a', 'ß').upper() %}"),
    "double a list": repeated("{% set ns.l = ns.l + ns.l %}"),
    "nest lists": repeated("{% set ns.l = [ns.l, ns.l] %}", "{{ ns.l }}"),
    "nest objects": repeated("{% set ns.l = {'a': ns.l, 'b': ns.l} %}", "{{ ns.l | tojson }}"),
    "nest with dict": repeated("{% set ns.l = dict(a=ns.l, b=ns.l) %}", "{{ ns.l }}"),
    "nest views": repeated("{% set ns.l = dict(a=ns.l).items() %}{% set ns.l = [ns.l, ns.l] %}", "{{ ns.l }}"),
    "nest with map": repeated("{% set ns.l = [1, 2] | map(attribute='z', default=ns.l) | list %}", "{{ ns.l }}"),
    "nest with cycler": repeated("{% set ns.l = cycler(ns.l, ns.l).items %}", "{{ ns.l }}"),
    "nest deep": NS + "{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "nest and compare": repeated("{% set ns.l = [ns.l, ns.l] %}{% set ns.y = [ns.y, ns.y] %}", "{{ ns.l == ns.y }}"),
    "nest namespaces": "{% set a = namespace() %}{% set b = namespace(x=a, y=a) %}{{ b }}",
    "nest namespaces later": "{% set a = namespace() %}{% set b = namespace() %}{% set b.x = a %}{{ b }}",
    "nest varargs": "{% macro m(d) %}{% if d < 40 %}{{ m(d + 1, varargs, varargs) }}{% endif %}{% endmacro %}"
    "{{ m(0, 1, 1) }}",
    "big power": "{{ (2 ** 4000) ** 4000 }}",
    "big product": repeated("{% set ns.i = ns.i * ns.i %}"),
    "wide format": "{{ '%1000000000d' % 1 }}",
    "star format": "{{ '%*d' % (1000000000, 1) }}",
    "precise format": "{{ '%.1000000000f' | format(1.5) }}",
    "many fields": "{{ ('%s' * 10000) | format('a' * 10000) }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'a\nb' | indent(1000000000) }}",
    "JSON indent": "{{ [[1]] | tojson(indent=1000000000) }}",
    "JSON separators": "{{ [1, 2] | tojson(separators=('a' * 1000000, ':')) }}",
    "range": "{{ range(100000000) | list }}",
    "sum of lists": "{{ ([[1]] * 1000) | sum(start=[]) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list | length }}",
    "slice": "{{ [1] | slice(1000000000) | list | length }}",
    "bytes": "{{ (5).to_bytes(1000000000, 'big') | length }}",
    "lipsum": "{{ lipsum(100000) }}",
    "round": "{{ 1 | round(1000000000) }}",
    "strftime": "{{ strftime_now('%99999999d') }}",
    "many variables": "".join(f"{{% set v{i} = '😀' * 100000 %}}" for i in range(1000)),
    "many slices": "{% set x = 'x' * 1000000 %}" + "".join(f"{{% set v{i} = x[1:] %}}" for i in range(1000)),
    "many parts": "{% set x = 'x ' * 20000 %}" + "".join(f"{{% set v{i} = x.split() %}}" for i in range(1000)),
    "output": "{% for a in range(9999) %}{% for b in range(9999) %}xxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless block": "{% block a %}{{ self.a() }}{% endblock %}",
    "parentheses": "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    "brackets": "{{ " + "[" * 6000 + "]" * 6000 + " }}",
    "nots": "{{ " + "not " * 9000 + "1 }}",
    "sums": "{{ 1" + "+1" * 3000 + " }}",
    "attributes": "{{ a" + ".a" * 3000 + " }}",
    "ifs": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "fors": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "many nodes": "{{a}}" * 13000,
    "long": "a" * (MAX_TEMPLATE_CHARACTERS + 1),
    "no template": "{% if %}",
}


@pytest.mark.parametrize("name", GROWING)
def test_what_would_use_up_memory_is_refused_quickly(name: str) -> None:
    start = time.process_time()
    with pytest.raises(TemplateError):
        render(GROWING[name])
    assert time.process_time() - start < 2


ALLOCATING = ("repeat", "double", "square", "escape", "capitals", "many", "wide", "output", "batch", "bytes", "range")
MANY_NODES = "{{ a }}" * 2500


def test_hostile_templates_need_little_memory() -> None:
    script = """
import json, resource, sys
from qwill.errors import TemplateError
from qwill.templates import compile_template
compile_template("{% for m in messages %}{{ m }}{% endfor %}").render({"messages": [1]})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for source in json.load(sys.stdin):
    try:
        compile_template(source).render({"messages": [{"role": "user", "content": "x"}]})
    except TemplateError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    assert compile_template(MANY_NODES)
    command = [sys.executable, "-c", script]
    given = json.dumps([*(GROWING[name] for name in GROWING if name.startswith(ALLOCATING)), MANY_NODES])
    result = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 100


def loop(body: str, name: str = "i", limit: int = 9999) -> str:
    return f"{{% for {name} in range({limit}) %}}{body}{{% endfor %}}"


LONG_PATH = "real" + ".real" * 12000
COLLISIONS = 50_000 * (2**61 - 1)  # every step of 2^61 - 1 has the hash 0
ENDLESS = {
    "loops": loop(loop(loop("", "a"), "b")),
    "loops with a filter": loop("{% for a in range(9999) if a < 0 %}{% endfor %}"),
    "recursive loops": "{% for a in range(9) recursive %}{% if loop.depth < 6 %}{{ loop(range(9999)) }}{% endif %}"
    "{% endfor %}",
    "branching macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "branching calls": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 40
    + "{% endcall %}" * 40,
    "membership in a filter": "{% set l = range(49999) | list %}{{ l | select('in', l) | list | length }}",
    "membership": "{% set l = range(49999) | list %}{% for x in l %}{% if -x in l %}{% endif %}{% endfor %}",
    "searches": "{% set x = 'ab' * 500000 %}" + loop("{% set y = x.count('ababab') %}"),
    "comparisons": "{% set x = 'ab' * 300000 %}{% set y = x[1:] ~ 'a' %}{% set z = 'b' ~ x[:-1] %}"
    + loop("{% if y == z %}{% endif %}"),
    "tests": "{% set x = 'a' * 900000 %}" + loop(loop("{% if x is lower %}{% endif %}", "j")),
    "sorting": loop("{% if range(49999) | sort | first %}{% endif %}"),
    "a long attribute": f"{{{{ range(50000) | map(attribute='{LONG_PATH}') | list | length }}}}",
    "a long attribute to sort by": f"{{{{ range(50000) | sort(false, false, '{LONG_PATH}') | length }}}}",
    "a long attribute to select by": f"{{{{ range(50000) | selectattr('{LONG_PATH}') | list | length }}}}",
    "a long attribute to join": f"{{{{ range(50000) | join('', attribute='{LONG_PATH}') }}}}",
    "a chain of maps": "{% set a = range(50000) %}"
    + "{% set a = a | map(attribute='real') %}" * 400
    + "{{ a | list }}",
    "equal hashes": f"{{{{ range(0, {COLLISIONS}, {2**61 - 1}) | unique | list | length }}}}",
    "equal hashes in a dict": f"{{{{ dict(range(0, {COLLISIONS}, {2**61 - 1}) | groupby('real')) | length }}}}",
    "trimming": "{{ ('一' * 300000) | trim('丁' * 300000 ~ '一') }}",
    "trimming each": "{{ ['一' * 40000] | map('trim', '丁' * 40000 ~ '一') | list }}",
    "strip": "{{ ('一' * 300000).strip('丁' * 300000 ~ '一') }}",
    "lstrip": "{{ ('一' * 300000).lstrip('丁' * 300000 ~ '一') }}",
    "rstrip": "{{ ('一' * 300000).rstrip('丁' * 300000 ~ '一') }}",
    "a search from the end": "{{ ('a' * 600000).rfind('ab' ~ 'a' * 300000) }}",
    "a split from the end": "{{ ('a' * 600000).rsplit(sep='ab' ~ 'a' * 300000) }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_run_for_ever_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "SECONDS", 0.1)
    monkeypatch.setattr(template_budget, "CHARACTERS", 10**8)  # so that time is what runs out
    start = time.process_time()
    with pytest.raises(TemplateError, match="too long"):
        render(ENDLESS[name])
    assert time.process_time() - start < 2


def test_lazy_filters_stay_lazy_and_true_as_in_jinja() -> None:
    assert render("{% if messages | selectattr('none') %}yes{% endif %}{{ none | map('upper') | list }}") == "yes[]"


def test_the_time_limit_as_shipped_ends_a_render_within_two_seconds() -> None:
    start = time.process_time()
    with pytest.raises(TemplateError, match="too long"):
        render(ENDLESS["loops"])
    assert time.process_time() - start < 2


def test_a_long_honest_conversation_stays_within_the_budget() -> None:
    source = (
        "{% for m in messages %}{% if messages[loop.index0:] | length %}{{ '<' + m.role + '>' + m.content | trim }}"
        "{{ m | tojson }}{% for x in m.content.split('\\n') %}{{ x }}{% endfor %}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": f"line {i}\nand another\n" * 20} for i in range(2000)]
    assert len(render(source, messages=messages)) > 2_000_000
    assert "x" * 10_000_000 in render(source, messages=[{"role": "user", "content": "x" * 10_000_000}])
