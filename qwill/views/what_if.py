"""What if another token had come: a text is cut there, and the engine goes on. Draws nothing but a line of HTML."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qwill.errors import SettingError
from qwill.sampling_params import SamplingParams
from qwill.tracing import Trace
from qwill.views.markup import escape
from qwill.views.token_texts import token_text

__all__ = ["Change", "WhatIf", "what_ifs"]

Change = tuple[int, int | str | None]
"""A position, and what comes there instead: a token id, a text, or None for whatever the model chooses."""


@dataclass(frozen=True)
class WhatIf:
    """What came after a change.

    Attributes:
        position: where the text was cut.
        replaced: (id, visible text) of the token that was there.
        by: (ids, visible text) of what came there instead; more than one id where a text needs them.
        ids: the tokens that the model wrote after it.
        text: their visible text.
    """

    position: int
    replaced: tuple[int, str]
    by: tuple[tuple[int, ...], str]
    ids: tuple[int, ...]
    text: str

    def data(self) -> dict[str, Any]:
        """As plain data; all ids of what came instead are under "by", "ids"."""
        ids, text = self.by
        return {
            "position": self.position,
            "replaced": {"id": self.replaced[0], "text": self.replaced[1]},
            "by": {"id": ids[0], "text": text, "ids": list(ids)},
            "text": self.text,
            "ids": list(self.ids),
        }

    def html(self) -> str:
        """One line of a page."""
        return (
            f'<div class="qv-line">{self.position}: <s class="qv-text">{escape(self.replaced[1])}</s> → '
            f'<b class="qv-text">{escape(self.by[1])}</b><span class="qv-text">{escape(self.text)}</span></div>'
        )

    def _repr_html_(self) -> str:
        return self.html()


def what_ifs(
    trace: Trace,
    changes: Sequence[Change],
    *,
    request_id: str | None = None,
    params: SamplingParams | None = None,
    max_tokens: int = 16,
) -> list[WhatIf]:
    """Change a traced request's text at some positions, each time from the original, and write on: all together.

    The text before a position is the new prompt, and what comes there belongs to it; the prefix cache has most of it.
    `params` are the request's own by default. As they are for a new answer, presence and frequency penalties count
    from the change on. Where None stands for the token, it is drawn anew with these parameters: greedily it stays the
    same. Do this after the `with` block of the trace, which would see it too.

    Raises:
        SettingError: no such position; a text that is no token; the request's answer follows a grammar, which cannot
            begin in the middle, and no params are given.
        PromptError, ContextLengthError: a token outside the vocabulary; nothing is left before or after the position.
    """
    request = trace.request(request_id).request
    ids = request.tokens(0, request.num_tokens)
    own = _params(request.params, max_tokens) if params is None else dataclasses.replace(params, max_tokens=max_tokens)
    changes = [(operator.index(position), token) for position, token in changes]  # numpy's numbers too
    new = [_tokens(trace, change, len(ids)) for change in changes]
    # Whatever the model chooses comes first and counts in addition.
    each = [own if given else dataclasses.replace(own, max_tokens=max_tokens + 1) for given in new]
    prompts = [ids[:position] + given for (position, _), given in zip(changes, new, strict=True)]
    if not prompts:
        return []
    outputs = trace.llm.generate(prompts, each, cache_salt=request.cache_salt, progress=False)
    found = []
    for (position, _), given, output in zip(changes, new, outputs, strict=True):
        if output.outputs[0].error is not None:
            raise output.outputs[0].error
        written = output.outputs[0].token_ids
        by, rest = (given, written) if given else (written[:1], written[1:])
        found.append(_found(trace, (position, ids[position]), by, rest))
    return found


def _found(trace: Trace, replaced: tuple[int, int], by: Sequence[int], rest: Sequence[int]) -> WhatIf:
    tokenizer, (position, token_id) = trace.llm.tokenizer, replaced
    return WhatIf(
        position=position,
        replaced=(token_id, token_text(tokenizer, token_id)),
        by=(tuple(by), token_text(tokenizer, by)),
        ids=tuple(rest),
        text=token_text(tokenizer, rest),
    )


def _params(params: SamplingParams, max_tokens: int) -> SamplingParams:
    if params.structured_outputs is not None:
        raise SettingError("this answer follows a grammar, which cannot begin in the middle", hint="give params")
    return dataclasses.replace(params, n=1, max_tokens=max_tokens, min_tokens=0, logprobs=None)


def _tokens(trace: Trace, change: Change, count: int) -> list[int]:
    """The ids that come instead; none where the model chooses."""
    position, token = change
    if not 0 <= position < count:
        raise SettingError(f"position = {position}: there is no such token", hint=f"allowed: 0 … {count - 1}")
    if token is None:
        return []
    ids = trace.llm.tokenize(token) if isinstance(token, str) else [operator.index(token)]
    if not ids:
        raise SettingError("an empty text cannot take a token's place", hint="give a token id or a text")
    return ids
