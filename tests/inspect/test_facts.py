from __future__ import annotations

from typing import Any

import pytest

from qwill.inspect.facts import facts
from qwill.inspect.structure import structure


def facts_of(models: Any, **changes: Any) -> dict[str, tuple[str, str]]:
    """Label -> value and meaning, for the tiny model with changes."""
    return {fact.label: (fact.value, fact.meaning) for fact in facts(structure(models.write(models.tiny | changes)))}


def test_numbers_are_those_of_the_configuration(models: Any) -> None:
    found = {label: value for label, (value, _) in facts_of(models).items()}
    assert found == {
        "architecture": "qwen3",
        "layers": "3",
        "hidden_size C": "32",
        "heads Hq": "4",
        "kv heads Hkv": "2",
        "heads per kv head": "2",
        "head_dim D": "16",
        "intermediate_size F": "96",
        "vocab_size V": "320",
        "context": "2,048",
        "rope_theta": "1,000,000",
        "rope scaling": "none",
        "rms_norm_eps": "1e-06",
        "tied": "yes",
        "QK-norm": "yes",
        "biases": "none",
    }


def test_every_number_has_a_short_meaning(models: Any) -> None:
    for label, (_, meaning) in facts_of(models).items():
        assert 10 < len(meaning) < 130, label


def test_heads_that_do_not_fill_the_hidden_size_are_pointed_out(models: Any) -> None:
    assert "4 × 16 = 64, not the hidden_size 32" in facts_of(models)["head_dim D"][1]
    assert "4 × 8 = 32, the hidden_size" in facts_of(models, head_dim=8)["head_dim D"][1]


@pytest.mark.parametrize(("kv_heads", "word"), [(4, "multi-head"), (1, "grouped-query")])
def test_attention_is_called_by_its_kind(models: Any, kv_heads: int, word: str) -> None:
    assert word in facts_of(models, num_key_value_heads=kv_heads)["architecture"][1]


@pytest.mark.parametrize("tokens", [300, 320, 330])
def test_padding_of_the_vocabulary_is_pointed_out(models: Any, tokens: int) -> None:
    import dataclasses

    found = dataclasses.replace(structure(models.write()), tokenizer_size=tokens)
    meaning = next(fact.meaning for fact in facts(found) if fact.label == "vocab_size V")
    words = {300: "uses 300, the other 20 are padding", 320: "a row for", 330: "330: they do not fit together"}
    assert meaning.endswith(words[tokens])


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_rope_scaling_is_explained(models: Any, kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 1024}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    value, meaning = facts_of(models, rope_scaling=scaling)["rope scaling"]
    assert value == f"{kind} × 4"
    assert "1,024 positions" in meaning


def test_the_slowest_pair_turns_as_in_transformers(models: Any) -> None:
    import math

    from transformers import AutoConfig
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    theirs = Qwen3RotaryEmbedding(AutoConfig.from_pretrained(models.write())).inv_freq
    assert f"{2 * math.pi / theirs[-1].double().item():,.0f}"[:4] in facts_of(models)["rope_theta"][1]
    assert f"{len(theirs)} pairs" in facts_of(models)["rope_theta"][1]


def test_biases_are_named(models: Any) -> None:
    found = facts_of(models, model_type="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    assert found["biases"][0] == "q k v, o, mlp"
    assert (found["tied"][0], found["QK-norm"][0]) == ("no", "no")


def test_without_a_configuration_there_is_nothing_to_explain(models: Any) -> None:
    assert facts(structure(models.write({}, tensors={"a": ("F32", (1,))}))) == []
