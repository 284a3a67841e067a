"""A look at a model from outside: its structure, its numbers and their meaning, its memory. Torch-free.

inspect_model(name)                  a local path, a stored model, or only the headers from a hub -> Structure
structure(path)                      the same for files that are here
render_structure(structure, console) print it
structure_to_dict(structure)         as plain data, for JSON
"""

from __future__ import annotations

from qwill.inspect.as_dict import structure_to_dict
from qwill.inspect.remote import inspect_model
from qwill.inspect.render import render_structure
from qwill.inspect.structure import Structure, structure

__all__ = ["Structure", "inspect_model", "render_structure", "structure", "structure_to_dict"]
