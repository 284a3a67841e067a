"""See inside. A model from outside (its structure, its numbers and their meaning, its memory), without torch:

inspect_model(name)                  a local path, a stored model, or only the headers from a hub -> Structure
structure(path)                      the same for files that are here
render_structure(structure, console) print it
structure_to_dict(structure)         as plain data, for JSON

And a model at work, which loads torch when it is first asked for:

trace(llm)                           a `with` block in which every op and step is noted -> Trace
attention(trace)                     what each head of each layer looks at -> Attention
rotary(config)                       how fast each pair of a head's numbers turns -> Rotary
weights(llm)                         every tensor's values, and the error of its number format -> Weights
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qwill.inspect.as_dict import structure_to_dict
from qwill.inspect.remote import inspect_model
from qwill.inspect.render import render_structure
from qwill.inspect.structure import Structure, structure

if TYPE_CHECKING:
    from qwill.tracing import trace
    from qwill.views.attention import attention
    from qwill.views.rotary import rotary
    from qwill.views.weights import weights

__all__ = [
    "Structure",
    "attention",
    "inspect_model",
    "render_structure",
    "rotary",
    "structure",
    "structure_to_dict",
    "trace",
    "weights",
]

_HOME = {
    "trace": "qwill.tracing",
    "attention": "qwill.views.attention",
    "rotary": "qwill.views.rotary",
    "weights": "qwill.views.weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qwill.inspect' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
