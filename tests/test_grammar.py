"""Grammars on the real Qwen3 vocabulary and on a tiny one: every answer that ends is what was asked for.

The judges are `json`, `re`, membership and a brute-force validator of JSON schemas; answers are random walks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwill.errors import SettingError
from qwill.grammar import Grammar, Matcher, Vocabulary, compile_grammar
from qwill.sampling_params import StructuredOutputsParams
from qwill.tokenizer import Tokenizer

PADDED = 40
"""Ids past the tiny vocabulary, which the model has and the tokenizer has not."""


@pytest.fixture(scope="module")
def tiny(tiny_tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tiny_tokenizer, tiny_tokenizer.vocab_size + PADDED)


@pytest.fixture(scope="module")
def qwen3_tokenizer(qwen3_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(qwen3_tokenizer_dir)


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(qwen3_tokenizer, eos_token_ids=(151643,))


def compiled(vocabulary: Vocabulary, **what: Any) -> Grammar:
    return compile_grammar(StructuredOutputsParams(**what), vocabulary)


def allowed(matcher: Matcher) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The mask, (V rounded up to a multiple of 8,) bool."""
    return np.unpackbits(matcher.mask(), bitorder="little").view(np.bool_)


def follow(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the matcher takes the text, by the tokenizer's own tokens, and may end after it."""
    for token_id in tokenizer.encode(text):
        if not allowed(matcher)[token_id]:
            return False
        matcher.accept(token_id)
    return bool(allowed(matcher)[list(tokenizer.eos_token_ids)].any())


def walk(grammar: Grammar, tokenizer: Tokenizer, ends: tuple[int, ...], seed: int, most: int = 300) -> str | None:
    """A random answer's text; None when it did not end. Short tokens and ends are likelier, so that most do end."""
    rng = np.random.default_rng(seed)
    matcher, token_ids = grammar.matcher(), list[int]()
    closing = np.array([*ends, *(i for i in range(256) if tokenizer.token_bytes(i) in b'"}],0123456789')])
    while len(token_ids) < most:
        mask = allowed(matcher)
        likely = closing[mask[closing]]
        token_id = int(rng.choice(likely if len(likely) and rng.random() < 0.7 else np.flatnonzero(mask)))
        if token_id not in ends:
            token_ids.append(token_id)
        matcher.accept(token_id)
        if matcher.finished:
            return tokenizer.decode(token_ids, skip_special_tokens=False)
    return None


# --- what is asked for is what comes ---------------------------------------------------------------------------------

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "绿", "b\"l'u\\e"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST: dict[str, Any] = {  # a valid schema that refers to itself
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
PAIRS = 'start: pair+\npair: KEY "=" NUMBER ";"\nKEY: /[a-z]{1,3}/\nNUMBER: /[0-9]+/'
NESTED_GBNF = 'root ::= "(" root ")" | "x"'
CHOICES = ["yes", "no", "ye", '我不知道 "\\\n\t😀']


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Brute force, for the keywords that these tests use."""
    if "$ref" in schema:
        return is_valid(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(is_valid(value, option, root) for option in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(option) and value == option for option in schema["enum"])
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        known = set(value) <= set(properties) if isinstance(value, dict) else False
        return known and set(schema["required"]) <= set(value) and all(
            is_valid(inner, properties[name], root) for name, inner in value.items()
        )  # fmt: skip
    if kind == "array":
        return isinstance(value, list) and len(value) <= schema.get("maxItems", 99) and all(
            is_valid(inner, schema["items"], root) for inner in value
        )  # fmt: skip
    if kind == "integer":
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema.get("maxLength", 10**6)
    return value is None if kind == "null" else isinstance(value, bool)


def is_pairs(text: str) -> bool:
    return re.fullmatch("([a-z]{1,3}=[0-9]+;)+", text) is not None


def is_nested(text: str) -> bool:
    depth = len(text) // 2
    return text == "(" * depth + "x" + ")" * depth


KINDS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": PERSON}, lambda text: is_valid(json.loads(text), PERSON, PERSON)),
    "json text": ({"json": json.dumps(PERSON)}, lambda text: is_valid(json.loads(text), PERSON, PERSON)),
    "json recursive": ({"json": LIST}, lambda text: is_valid(json.loads(text), LIST, LIST)),
    "json_object": ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    "regex": ({"regex": r"[a-c]{2,5}(-\d+)?|é+x"}, lambda text: bool(re.fullmatch(r"[a-c]{2,5}(-\d+)?|é+x", text))),
    "regex of pitfalls": ({"regex": "(a+)+$"}, lambda text: bool(re.fullmatch("(a+)+$", text))),
    "grammar": ({"grammar": PAIRS}, is_pairs),
    "grammar in GBNF": ({"grammar": NESTED_GBNF}, is_nested),
    "choice": ({"choice": CHOICES}, CHOICES.__contains__),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_random_answer_that_ends_is_what_was_asked_for(
    kind: str, tiny: Vocabulary, tiny_tokenizer: Tokenizer, qwen3: Vocabulary, qwen3_tokenizer: Tokenizer
) -> None:
    what, is_right = KINDS[kind]
    for vocabulary, tokenizer, answers in ((tiny, tiny_tokenizer, 40), (qwen3, qwen3_tokenizer, 12)):
        grammar = compiled(vocabulary, **what)
        texts = [walk(grammar, tokenizer, vocabulary.eos_token_ids, seed) for seed in range(answers)]
        ended = [text for text in texts if text is not None]
        assert len(ended) >= answers // 4
        for text in ended:
            assert is_right(text), text


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer", "minimum": -5, "maximum": 120},
            {"type": "string", "maxLength": 6},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["a", "ab", 'q"', "é", 1, 12]},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda properties, keep: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:keep],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b c", "é", '"', "true"]), inner, min_size=1, max_size=3),
            st.integers(0, 3),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_random_answers_to_random_schemas_are_valid(
    schema: dict[str, Any], seed: int, tiny: Vocabulary, tiny_tokenizer: Tokenizer
) -> None:
    text = walk(compiled(tiny, json=schema), tiny_tokenizer, tiny.eos_token_ids, seed)
    assert text is None or is_valid(json.loads(text), schema, schema), text


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8), min_size=1, max_size=4)
)
def test_any_text_can_be_chosen_and_no_other(texts: list[str], tiny: Vocabulary, tiny_tokenizer: Tokenizer) -> None:
    grammar = compiled(tiny, choice=texts)
    answers = {walk(grammar, tiny_tokenizer, tiny.eos_token_ids, seed) for seed in range(6)}
    assert answers <= set(texts)


def test_indented_and_compact_json_may_be_written(qwen3: Vocabulary, qwen3_tokenizer: Tokenizer) -> None:
    value = {"name": "Ada", "age": 36, "tags": ["red"]}
    grammar = compiled(qwen3, json=PERSON)
    for text in (json.dumps(value), json.dumps(value, indent=4), json.dumps(value, separators=(",", ":"))):
        assert follow(grammar.matcher(), qwen3_tokenizer, text)
    endless = '{"name": "Ada",' + "\n" * 60 + '"age": 36}'
    assert not follow(grammar.matcher(), qwen3_tokenizer, endless)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_mask_is_as_long_as_the_logits_and_never_allows_an_id_that_is_no_token(
    tiny: Vocabulary, tiny_tokenizer: Tokenizer
) -> None:
    for what in ({"regex": r"[\s\S]*"}, {"json": {}}, {"json_object": True}):
        matcher = compiled(tiny, **what).matcher()
        for token_id in (*tiny_tokenizer.encode("{}"),):
            assert matcher.mask().shape == (-(-(tiny_tokenizer.vocab_size + PADDED) // 8),)
            mask = allowed(matcher)
            assert not mask[tiny_tokenizer.vocab_size :].any()
            unused = [i for i in range(tiny_tokenizer.vocab_size) if i not in known(tiny_tokenizer)]
            assert len(unused) == 2
            assert not mask[unused].any()
            matcher.accept(token_id)


def known(tokenizer: Tokenizer) -> set[int]:
    return {*tokenizer._plain.get_vocab().values(), *tokenizer.special_tokens.values()}


def test_a_vocabulary_smaller_than_the_tokenizers_is_never_left(tiny_tokenizer: Tokenizer) -> None:
    small = Vocabulary(tiny_tokenizer, 260, eos_token_ids=(5, 300))
    assert small.eos_token_ids == (5,)
    grammar = compiled(small, choice=["yes", "true ab"])
    assert grammar.matcher().mask().shape == (33,)
    answers = {walk(grammar, tiny_tokenizer, small.eos_token_ids, seed) for seed in range(20)}
    assert answers == {"yes", "true ab"}


def test_text_is_written_with_ordinary_tokens_only(qwen3: Vocabulary, qwen3_tokenizer: Tokenizer) -> None:
    special = sorted(qwen3_tokenizer.special_tokens.values())
    for what in ({"regex": r"[\s\S]*"}, {"choice": ["<think>", "<|im_start|>"]}, {"json": {"type": "string"}}):
        matcher = compiled(qwen3, **what).matcher()
        if "json" in what:
            matcher.accept(qwen3_tokenizer.encode('"')[0])
        assert not allowed(matcher)[[i for i in special if i not in qwen3.eos_token_ids]].any()
    called = compiled(qwen3, grammar='start: <tool_call> "x"').matcher()
    assert np.flatnonzero(allowed(called)).tolist() == [qwen3_tokenizer.special_tokens["<tool_call>"]]


def test_every_end_token_may_end_an_answer_that_may_end(qwen3: Vocabulary, qwen3_tokenizer: Tokenizer) -> None:
    for end in (151643, 151645):
        matcher = compiled(qwen3, regex="a+").matcher()
        assert not allowed(matcher)[[151643, 151645]].any()
        matcher.accept(qwen3_tokenizer.encode("a")[0])
        assert allowed(matcher)[[151643, 151645]].all()
        assert not matcher.finished
        matcher.accept(end)
        assert matcher.finished


def test_an_answer_after_which_nothing_may_follow_is_finished_at_once(
    qwen3: Vocabulary, qwen3_tokenizer: Tokenizer
) -> None:
    matcher = compiled(qwen3, json_object=True).matcher()
    for token_id in qwen3_tokenizer.encode('{"a": 1}'):
        assert not matcher.finished
        matcher.accept(token_id)
    assert matcher.finished


def test_matchers_of_one_grammar_know_nothing_of_each_other(tiny: Vocabulary, tiny_tokenizer: Tokenizer) -> None:
    grammar = compiled(tiny, choice=["ab", "yes"])
    first, second = grammar.matcher(), grammar.matcher()
    assert follow(first, tiny_tokenizer, "yes")
    assert follow(second, tiny_tokenizer, "ab")
    assert np.array_equal(grammar.matcher().mask(), grammar.matcher().mask())


def test_a_token_that_is_not_allowed_is_an_error_and_stays_one(tiny: Vocabulary, tiny_tokenizer: Tokenizer) -> None:
    grammar = compiled(tiny, choice=["ab"])
    matcher = grammar.matcher()
    with pytest.raises(SettingError, match="structured_outputs"):
        matcher.accept(tiny_tokenizer.encode("x")[0])
    with pytest.raises(SettingError):
        allowed(matcher)
    assert follow(grammar.matcher(), tiny_tokenizer, "ab")


def test_text_that_the_tokenizer_would_compose_is_written_as_it_is(
    qwen3: Vocabulary, qwen3_tokenizer: Tokenizer
) -> None:
    texts = ("e\u0301e\u0301", "\u212b")
    for text in texts:
        assert walk(compiled(qwen3, choice=[text]), qwen3_tokenizer, qwen3.eos_token_ids, 0) == text
