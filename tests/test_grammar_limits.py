"""What is wrong with a grammar is told at once; what is too much for it ends with an error, and never hangs."""

from __future__ import annotations

import builtins
import time
from typing import Any

import numpy as np
import pytest

from qwill.errors import SettingError
from qwill.grammar import COMPILE_SECONDS, Grammar, Vocabulary, compile_grammar
from qwill.sampling_params import StructuredOutputsParams
from qwill.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tiny(tiny_tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tiny_tokenizer)


def compiled(vocabulary: Vocabulary, **what: Any) -> Grammar:
    return compile_grammar(StructuredOutputsParams(**what), vocabulary)


TWICE = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(22)} | {"a22": {"type": "integer"}}
BAD: dict[str, dict[str, Any]] = {
    "regex that is none": {"regex": "["},
    "regex with look-ahead": {"regex": "(?=a)b"},
    "regex with a back reference": {"regex": r"(a)\1"},
    "regex nested deeply": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "schema of an unknown type": {"json": {"type": "unknown"}},
    "schema with a keyword that is not supported": {"json": {"not": {"type": "string"}}},
    "schema that nothing fulfils": {"json": {"type": "integer", "minimum": 5, "maximum": 4}},
    "schema with a bad pattern": {"json": {"type": "string", "pattern": "["}},
    "schema on another machine": {"json": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "schema in a file": {"json": {"$ref": "file:///etc/passwd"}},
    "schema that refers to nothing": {"json": {"$ref": "#/$defs/missing"}},
    "schema that refers only to itself": {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    "schema of many combinations": {"json": {"allOf": [
        {"anyOf": [{"properties": {f"p{i}": {"type": "null"}}}, {"properties": {f"q{i}": {"type": "null"}}}]}
        for i in range(16)
    ]}},
    "grammar that is none": {"grammar": "start: ("},
    "grammar without a rule": {"grammar": "start: missing"},
    "grammar in GBNF nested deeply": {"grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "grammar nested deeply": {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_quickly(name: str, tiny: Vocabulary) -> None:
    start = time.perf_counter()
    with pytest.raises(SettingError, match=r"structured_outputs.*\nhint: ") as caught:
        compiled(tiny, **BAD[name])
    assert time.perf_counter() - start < COMPILE_SECONDS + 0.5
    assert len(str(caught.value)) < 600


HEAVY: dict[str, dict[str, Any]] = {
    "repeats of repeats": {"regex": "(a{1000}){1000}"},
    "every way to split": {"regex": "(x+x+)+y"},
    "many states": {"regex": "[ab]*a[ab]{30}"},
    "long repeat": {"regex": r"\p{L}{1,1000}"},
    "doubling references": {"json": {"$defs": TWICE, "$ref": "#/$defs/a0"}},
    "ambiguous grammar": {"grammar": 'start: start start | "a" | "b"'},
    "long choice": {"choice": [f"v{i}" for i in range(1024)]},
    "many properties": {"json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(500)}}},
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_grammar_either_works_or_ends_with_an_error_and_never_hangs(name: str, tiny: Vocabulary) -> None:
    start = time.perf_counter()
    rng = np.random.default_rng(0)
    try:
        matcher = compiled(tiny, **HEAVY[name]).matcher()
        for _ in range(100):
            matcher.accept(int(rng.choice(np.flatnonzero(np.unpackbits(matcher.mask(), bitorder="little")))))
            if matcher.finished:
                break
    except SettingError as error:
        assert error.hint  # noqa: PT017  (either outcome is right)
    assert time.perf_counter() - start < COMPILE_SECONDS + 3


def test_compiling_stops_being_waited_for(tiny: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwill.grammar.COMPILE_SECONDS", 0.0)
    with pytest.raises(SettingError, match="too complex: not compiled after 0 seconds"):
        compiled(tiny, json={"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(500)}})


def test_without_llguidance_the_error_says_what_to_install(
    tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("llguidance"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SettingError, match=r"pip install 'qwill\[structured\]'"):
        Vocabulary(tiny_tokenizer)


def test_a_tokenizer_without_an_end_is_refused(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(SettingError, match="end-of-text"):
        Vocabulary(tiny_tokenizer, 250)
