"""A tree of modules, built from tensor names, and the folding of modules that are equal.

Knows names, shapes and dtypes; nothing of files, configurations and consoles. Names come from files of strangers, so
the depth of the tree is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

__all__ = ["Fold", "Module", "Tensor", "build_tree", "fold", "number_ranges"]

MAX_DEPTH = 32

_ORDER = (
    *("model", "embed_tokens", "layers"),
    *("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
    *("q_proj", "q_norm", "k_proj", "k_norm", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("weight", "bias", "norm", "lm_head"),
)
"""Siblings are listed in the order in which the model uses them; unknown names come last, in the file's order."""
_RANK = {label: rank for rank, label in enumerate(_ORDER)}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, as its file's header describes it.

    Attributes:
        name: the Hugging Face checkpoint's name, also for GGUF.
        stored_name: the name in the file.
        dtype: the file format's name, "BF16" or "Q4_K".
        shape: PyTorch order: (out_features, in_features).
        nbytes: bytes in the file.
        file: name of the file, without its folder.
        offset: bytes from the file's start to the data.
        role: one of `COUNTED`, or why it is not counted: "tied copy", "buffer" or "unused".
    """

    COUNTED: ClassVar[tuple[str, ...]] = ("embedding", "language_model", "lm_head")

    name: str
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int
    role: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_counted(self) -> bool:
        """Whether its elements are parameters of the model that nothing else counts."""
        return self.role in self.COUNTED

    @property
    def label(self) -> str:
        """The last part of the name: weight, bias."""
        return _parts(self.name)[-1]


@dataclass(frozen=True)
class Module:
    """A node of the tree: what lies directly in it, and the modules below. The root's name is empty."""

    name: str
    tensors: tuple[Tensor, ...]
    children: tuple[Module, ...]

    @property
    def label(self) -> str:
        """The last part of the name: q_proj, or 27 for a layer."""
        return self.name.rpartition(".")[2]

    @cached_property
    def parameters(self) -> int:
        """Parameters in here and below, each counted once."""
        return sum(t.numel for t in self.tensors if t.is_counted) + sum(child.parameters for child in self.children)

    @cached_property
    def nbytes(self) -> int:
        """Bytes in the files, of here and below."""
        return sum(t.nbytes for t in self.tensors) + sum(child.nbytes for child in self.children)

    @cached_property
    def flat(self) -> dict[str, Tensor]:
        """Name from here on -> every tensor in here and below."""
        own = {tensor.label: tensor for tensor in self.tensors}
        below = {f"{child.label}.{name}": t for child in self.children for name, t in child.flat.items()}
        return own | below

    @property
    def is_leaf(self) -> bool:
        """Whether there are only tensors in it: a linear layer, a norm, an embedding."""
        return not self.children


@dataclass(frozen=True)
class Fold:
    """Numbered modules with equal contents, of which the first stands for all."""

    numbers: tuple[int, ...]
    first: Module


def fold(modules: Sequence[Module]) -> list[Fold]:
    """Sort numbered siblings (layers, experts) into groups that are equal in every name, dtype and shape.

    The groups need not be neighbours: a GGUF file may store every third layer in a better type.
    """
    groups: dict[tuple[object, ...], list[Module]] = {}
    for module in modules:
        contents = tuple((name, t.dtype, t.shape, t.is_counted) for name, t in module.flat.items())
        groups.setdefault(contents, []).append(module)
    return [Fold(tuple(int(module.label) for module in group), group[0]) for group in groups.values()]


def number_ranges(numbers: Iterable[int]) -> str:
    """0 … 27, or 0, 1, 3, 6 … 10, 13 for increasing numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]} … {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts)


@dataclass
class _Node:
    tensors: list[Tensor] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)


def build_tree(tensors: Iterable[Tensor]) -> Module:
    """The modules that the dots in the tensors' names make."""
    root = _Node()
    for tensor in tensors:
        node = root
        for part in _parts(tensor.name)[:-1]:
            node = node.children.setdefault(part, _Node())
        node.tensors.append(tensor)
    return _module("", root)


def _parts(name: str) -> list[str]:
    return name.split(".", MAX_DEPTH)


def _module(name: str, node: _Node) -> Module:
    children = sorted(node.children.items(), key=lambda item: _rank(item[0]))
    prefix = f"{name}." if name else ""
    return Module(
        name,
        tuple(sorted(node.tensors, key=lambda tensor: _rank(tensor.label))),
        tuple(_module(prefix + label, child) for label, child in children),
    )


def _rank(label: str) -> tuple[int, int]:
    if is_number(label):
        return 0, int(label)
    return 1, _RANK.get(label, len(_RANK))


def is_number(label: str) -> bool:
    """Whether a module's label is that of a numbered sibling."""
    return label.isascii() and label.isdecimal() and len(label) <= 9
