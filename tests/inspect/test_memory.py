from __future__ import annotations

from typing import Any

import pytest

from qwill.inspect.memory import BYTES_OF_32, kv_memory, weight_memory
from qwill.inspect.structure import structure


def test_bytes_of_quantized_weights_are_those_of_ggufs_types_of_the_same_layout() -> None:
    import gguf

    for ours, theirs in (("int8", "Q8_0"), ("int4", "Q4_0")):
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[theirs]] == (32, BYTES_OF_32[ours][0])


@pytest.mark.parametrize("tied", [True, False])
def test_plain_weights_take_what_torch_takes(models: Any, tied: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = models.write(models.tiny | {"tie_word_embeddings": tied})
    found = weight_memory(structure(folder))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        assert found[name] == sum(p.nbytes for p in theirs.to(dtype).parameters())


def test_norms_and_biases_are_not_quantized(models: Any) -> None:
    tensors = {"a.weight": ("BF16", (64, 32)), "norm.weight": ("BF16", (10,)), "a.bias": ("BF16", (64,))}
    found = weight_memory(structure(models.write({}, tensors=tensors)))
    assert found == {"fp32": 8488, "bf16": 4244, "int8": 64 * 34 + 4 * 74, "int4": 64 * 18 + 4 * 74}


def test_the_kv_cache_is_that_of_transformers(models: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = models.write()
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    cache = model(torch.tensor([[1, 2, 3, 4, 5]]), use_cache=True).past_key_values
    theirs = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    kv = kv_memory(structure(folder))
    assert kv is not None
    assert kv.per_token * 5 == theirs
    assert (kv.per_step, kv.at_full_context) == (kv.per_token * 1024, kv.per_token * 2048)


def test_without_a_configuration_there_is_no_kv_cache(models: Any) -> None:
    assert kv_memory(structure(models.write({}, tensors={"a": ("F32", (1,))}))) is None
