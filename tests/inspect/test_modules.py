from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qwill.inspect.modules import Module, Tensor, build_tree, fold, number_ranges


def tensor(name: str, dtype: str = "F32", shape: tuple[int, ...] = (2, 3), role: str = "language_model") -> Tensor:
    return Tensor(name, name, dtype, shape, 24, "model.safetensors", 0, role)


def layers(dtypes: str) -> list[Module]:
    """One layer for each letter, whose only tensor has that dtype."""
    tree = build_tree(tensor(f"layers.{i}.up.weight", dtype) for i, dtype in enumerate(dtypes))
    return list(tree.children[0].children)


@given(st.text("abc", min_size=1, max_size=20))
def test_every_layer_is_in_exactly_one_fold_with_its_equals(dtypes: str) -> None:
    folds = fold(layers(dtypes))
    assert sorted(n for group in folds for n in group.numbers) == list(range(len(dtypes)))
    for group in folds:
        assert {dtypes[n] for n in group.numbers} == {group.first.flat["up.weight"].dtype}
    assert len(folds) == len(set(dtypes))


def test_layers_that_differ_in_a_shape_or_a_name_are_not_folded() -> None:
    names = {"l.0.a": (2, 3), "l.1.a": (3, 2), "l.2.b": (2, 3), "l.3.a": (2, 3)}
    tree = build_tree(tensor(name, shape=shape) for name, shape in names.items())
    assert [group.numbers for group in fold(tree.children[0].children)] == [(0, 3), (1,), (2,)]


@given(st.sets(st.integers(0, 40)))
def test_number_ranges_can_be_read_back(numbers: set[int]) -> None:
    read: list[int] = []
    for part in filter(None, number_ranges(sorted(numbers)).split(", ")):
        first, _, last = part.partition(" … ")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(numbers)


def test_number_ranges_are_short() -> None:
    assert number_ranges(range(28)) == "0 … 27"
    assert number_ranges([0, 1, 3, 6, 7, 8, 11]) == "0, 1, 3, 6 … 8, 11"


def test_siblings_come_in_the_order_of_use_and_layers_by_number() -> None:
    names = ["lm_head.weight", "model.norm.weight", "model.layers.10.mlp.weight", "model.layers.9.mlp.weight"]
    names += ["model.layers.9.self_attn.weight", "model.other.weight", "model.embed_tokens.weight"]
    tree = build_tree(map(tensor, names))
    assert list(tree.flat) == [
        "model.embed_tokens.weight",
        "model.layers.9.self_attn.weight",
        "model.layers.9.mlp.weight",
        "model.layers.10.mlp.weight",
        "model.norm.weight",
        "model.other.weight",
        "lm_head.weight",
    ]


def test_what_is_not_counted_weighs_but_adds_no_parameters() -> None:
    tree = build_tree([tensor("a.weight"), tensor("b.weight", role="tied copy")])
    assert (tree.parameters, tree.nbytes) == (6, 48)


def test_a_name_of_ten_thousand_dots_makes_no_deep_tree() -> None:
    tree = build_tree([tensor("a" + ".b" * 10_000)])
    assert len(tree.flat) == 1
    assert tree.parameters == 6
