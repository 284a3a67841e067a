"""Grammar: which tokens may come next in an answer that must follow a JSON schema, a regex, a grammar or a choice.

`llguidance` does the work; here are the limits around it, which keep a hostile grammar from hurting anybody but its
sender, and the plain interface that the sampler needs. A grammar is compiled by whoever brings the request, before the
engine sees it. Knows token ids and the bytes of each; no model and no tensor. Nothing is kept: compiling takes
about a millisecond.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qwill.errors import PromptError, QwillError, SettingError
from qwill.sampling_params import StructuredOutputsParams
from qwill.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

__all__ = ["Grammar", "Grammars", "Matcher", "Vocabulary", "compile_grammar"]

_Result = TypeVar("_Result")

COMPILE_SECONDS = 2.0
"""Time for compiling and for the first mask. The fuel below ends a runaway soon after."""
LEXER_FUEL = 300_000
"""A tenth of a second or so of building regular expressions; 6,000 texts to choose from need 60,000."""
MAX_LEXER_STATES = 50_000
"""About 100 MB; a long answer to a large schema makes some thousands."""
JSON_SPACE = r" |\r?\n[ \t]{0,20}"
"""White space between the parts of JSON: a space, or a new line and its indentation. Models lose themselves in more."""


class Vocabulary:
    """A tokenizer's tokens as grammars see them. Takes about a second for 150,000 tokens: make one and keep it.

    `vocab_size` counts the ids that may be sampled, and so the length of masks; `eos_token_ids` are added to the
    tokenizer's own. A grammar's text is written with ordinary tokens only, so that no answer holds a control token
    by chance; a Lark grammar may name one, as <tool_call>.

    Raises:
        SettingError: llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None, eos_token_ids: Iterable[int] = ()) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise SettingError(
                "structured_outputs needs llguidance, which is not installed", hint="pip install 'qwill[structured]'"
            ) from error
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        ends = dict.fromkeys([*tokenizer.eos_token_ids, *eos_token_ids])
        self.eos_token_ids = tuple(token_id for token_id in ends if token_id < self.vocab_size)
        if not self.eos_token_ids:
            raise SettingError("structured_outputs needs an end-of-text token, and this tokenizer has none")
        tokens: Any = _Tokens(tokenizer, self.vocab_size, self.eos_token_ids)
        self.tokenizer = _call(LLTokenizer, tokens, n_vocab=self.vocab_size, eos_token=list(self.eos_token_ids))


class _Tokens:
    """What llguidance asks of a tokenizer; the names are its own."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.eos_token_id = eos_token_ids[0]
        self.tokens = [_bytes_of(tokenizer, token_id) for token_id in range(vocab_size)]
        added = {*tokenizer.special_tokens.values(), *eos_token_ids}
        self.special_token_ids = sorted(token_id for token_id in added if token_id < vocab_size)
        self._encode = tokenizer.encode
        self._byte_ids = {self.tokens[i]: i for i in range(vocab_size) if i not in added and len(self.tokens[i]) == 1}

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that a grammar leaves no choice about: the tokenizer's own, where they spell it.

        They do not where the tokenizer would normalize the text (é in two characters to é in one); then it is spelled
        byte by byte.
        """
        data = text.encode()
        token_ids = self._encode(text)
        if all(i < len(self.tokens) for i in token_ids) and b"".join([self.tokens[i] for i in token_ids]) == data:
            return token_ids
        return [self._byte_ids[data[i : i + 1]] for i in range(len(data))]


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    """A token's bytes; none for an id that stands for nothing, which is then never allowed."""
    try:
        return tokenizer.token_bytes(token_id)
    except PromptError:
        return b""


class Grammar:
    """A compiled grammar, which any number of answers may follow."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size

    def matcher(self) -> Matcher:
        """A fresh state for one answer."""
        return Matcher(self._start.deep_copy(), self._vocab_size)


class Matcher:
    """How far one answer has come in its grammar. A failure in here ends that answer alone."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.finished = False
        """Whether the answer is complete and nothing may follow, an end-of-text token aside."""

    def mask(self) -> NDArray[np.uint8]:
        """The tokens that may come next, an end-of-text token where the answer may end.

        Packed, (V / 8 rounded up,): token i is bit i % 8 of byte i // 8. The array is the caller's.

        Raises:
            SettingError: the grammar became too complex, or leaves nothing to go on with.
        """
        packed = np.frombuffer(_call(self._matcher.compute_bitmask), dtype=np.uint8)
        self._check()
        if not packed.any():
            raise SettingError("structured_outputs: no token of this model goes on with the answer")
        return packed[: -(-self._vocab_size // 8)].copy()

    def accept(self, token_id: int) -> None:
        """The token that came next.

        Raises:
            SettingError: the grammar does not allow it, or became too complex.
        """
        _call(self._matcher.consume_token, token_id)
        self._check()
        self.finished = self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _refusal("the grammar became too complex", self._matcher.get_error())


class Grammars:
    """Compiles the grammars of one model's requests, for any number of threads. Parameters: see `Vocabulary`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._make = partial(Vocabulary, tokenizer, vocab_size, eos_token_ids)
        self._vocabulary: Vocabulary | None = None  # made when first needed: most models never need one
        self._lock = threading.Lock()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """See `compile_grammar`."""
        with self._lock:
            self._vocabulary = self._vocabulary or self._make()
        return compile_grammar(params, self._vocabulary)


def compile_grammar(params: StructuredOutputsParams, vocabulary: Vocabulary) -> Grammar:
    """Compile what an answer must look like. Takes about a millisecond, at most COMPILE_SECONDS.

    Raises:
        SettingError: it is wrong, cannot be fulfilled, uses what is not supported, or is too complex.
    """
    compiled: Future[Grammar] = Future()

    def compile_and_tell() -> None:
        try:
            compiled.set_result(_compile(params, vocabulary))
        except BaseException as error:
            compiled.set_exception(error)

    threading.Thread(target=compile_and_tell, name="qwill-grammar", daemon=True).start()
    try:
        return compiled.result(timeout=COMPILE_SECONDS)
    except TimeoutError:
        raise _refusal("too complex", f"not compiled after {COMPILE_SECONDS:g} seconds") from None


def _compile(params: StructuredOutputsParams, vocabulary: Vocabulary) -> Grammar:
    from llguidance import LLMatcher

    start = _call(LLMatcher, vocabulary.tokenizer, _source(params), log_level=0, limits=_limits())
    if not start.is_error():
        _call(start.compute_bitmask)  # much of the work is done only here, and some mistakes show only here
    if start.is_error():
        raise _refusal("cannot be used", start.get_error())
    return Grammar(start, vocabulary.vocab_size)


def _source(params: StructuredOutputsParams) -> str:
    """The grammar in llguidance's own format."""
    from llguidance import LLMatcher, grammar_from, regex_to_lark

    if params.regex is not None:
        # \d is 0 … 9: Unicode has other digits, more in each version, which hardly anybody expects.
        return LLMatcher.grammar_from_lark(f"start: /{_call(regex_to_lark, params.regex, 'd')}/")
    if params.grammar is not None:
        return _call(grammar_from, "grammar", params.grammar)
    if params.choice:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, params.choice)))
    schema = params.json or '{"type": "object"}'
    return _call(LLMatcher.grammar_from_json_schema, schema, overrides={"whitespace_pattern": JSON_SPACE})


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(initial_lexer_fuel=LEXER_FUEL, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def _call(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Call llguidance: it raises bare Exceptions, RecursionErrors and, when it panics, a BaseException."""
    try:
        return function(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, QwillError):
        raise
    except BaseException as error:
        raise _refusal("cannot be used", str(error)) from error


def _refusal(problem: str, cause: str) -> SettingError:
    shown = " ".join(cause.replace("<non-verbose/>", "").split())
    return SettingError(
        f"structured_outputs: {problem}" + (f": {shown:.300}" if shown else ""),
        hint="correct or simplify the schema, regular expression or grammar",
    )
