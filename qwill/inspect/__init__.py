"""See inside. A model from outside (its structure, its numbers and their meaning, its memory), without torch:

inspect_model(name)                  a local path, a stored model, or only the headers from a hub -> Structure
structure(path)                      the same for files that are here
render_structure(structure, console) print it
structure_to_dict(structure)         as plain data, for JSON

And a model at work, which loads torch when it is first asked for:

trace(llm)                           a `with` block in which every op and step is noted -> Trace
tokens(trace or llm, text)           a text's tokens with ids and bytes -> Tokens
probabilities(trace)                 how probable each token was, what else could have come -> Probabilities
logit_lens(trace)                    what each layer would say -> LogitLens
attention(trace)                     what each head of each layer looks at -> Attention
rotary(config)                       how fast each pair of a head's numbers turns -> Rotary
weights(llm)                         every tensor's values, and the error of its number format -> Weights
kv_cache(trace)                      whose block is which, step by step; shared ones, and prefixes found again
roofline(trace)                      time and bytes per op, against what memory can do
explain(llm, prompt)                 all of these for one answer, as one HTML page -> Report
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qwill.inspect.as_dict import structure_to_dict
from qwill.inspect.remote import inspect_model
from qwill.inspect.render import render_structure
from qwill.inspect.structure import Structure, structure

if TYPE_CHECKING:
    from qwill.report import explain
    from qwill.tracing import trace
    from qwill.views.attention import attention
    from qwill.views.kv_cache import kv_cache
    from qwill.views.logit_lens import logit_lens
    from qwill.views.probabilities import probabilities
    from qwill.views.roofline import roofline
    from qwill.views.rotary import rotary
    from qwill.views.tokens import tokens
    from qwill.views.weights import weights

__all__ = [
    "Structure",
    "attention",
    "explain",
    "inspect_model",
    "kv_cache",
    "logit_lens",
    "probabilities",
    "render_structure",
    "roofline",
    "rotary",
    "structure",
    "structure_to_dict",
    "tokens",
    "trace",
    "weights",
]

_HOME = {"trace": "qwill.tracing", "explain": "qwill.report"} | {
    name: f"qwill.views.{name}"
    for name in ("attention", "kv_cache", "logit_lens", "probabilities", "roofline", "rotary", "tokens", "weights")
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qwill.inspect' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
