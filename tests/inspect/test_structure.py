from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.config import load_config
from qwill.errors import FormatError, ModelNotFoundError
from qwill.inspect.modules import Module
from qwill.inspect.structure import Structure, structure

SMALL = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILY: dict[str, dict[str, Any]] = {
    "qwen3 tied": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3 untied": {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": False},
    "qwen3 with biases": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "head_dim": 8},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
}


def modules_of(module: Module) -> dict[str, Module]:
    """Name -> module, of a tree."""
    below = {name: found for child in module.children for name, found in modules_of(child).items()}
    return {module.name: module} | below


def kinds(found: Structure) -> dict[str, tuple[str, ...]]:
    return {mismatch.kind: mismatch.details for mismatch in found.mismatches}


@pytest.mark.parametrize("name", FAMILY)
def test_counts_equal_transformers_in_every_module(name: str, models: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SMALL, **FAMILY[name]))
    folder = models.write({}, tensors={n: ("F32", tuple(p.shape)) for n, p in theirs.named_parameters()})
    theirs.config.save_pretrained(folder)
    found = structure(folder)
    assert found.mismatches == ()
    assert found.parameters.total == theirs.num_parameters()
    assert found.parameters.language_model == theirs.num_parameters() - sum(
        p.numel() for n, p in theirs.named_parameters() if n.startswith(("lm_head", "model.embed"))
    )
    for module, ours in modules_of(found.root).items():
        assert ours.parameters == sum(p.numel() for p in theirs.get_submodule(module).parameters()), module


@pytest.mark.parametrize("copy", [False, True])
def test_qwen3_06b_has_596_million_parameters_with_and_without_the_redundant_head(models: Any, copy: bool) -> None:
    def change(tensors: dict[str, Any]) -> None:
        if copy:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    counts = structure(models.write(models.qwen3_06b, change=change)).parameters
    assert counts.total == 596_049_920  # the number on the model's page: 0.6 B; 0.44 B without the embedding
    assert counts.language_model == 440_467_456
    assert counts.embedding == 155_582_464
    assert counts.lm_head == 0
    assert counts.stored == (751_632_384 if copy else 596_049_920)
    assert counts.not_counted == (("lm_head.weight",) if copy else ())


def test_qwen3_06b_takes_less_than_a_second(models: Any) -> None:
    folder = models.write(models.qwen3_06b)
    start = time.process_time()  # other programs may keep the processor busy
    structure(folder)
    assert time.process_time() - start < 1


sizes = st.integers(1, 9)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), st.tuples(sizes, sizes), max_size=12))
@settings(max_examples=60)
def test_whatever_the_tensors_are_called_all_are_counted_once(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    header, end = {}, 0
    for name, shape in shapes.items():
        if name != "__metadata__":
            start, end = end, end + 4 * shape[0] * shape[1]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    found = structure(path)
    assert found.parameters.stored == found.root.parameters == end // 4
    assert sorted(t.name for t in found.root.flat.values()) == sorted(header)
    assert found.root.nbytes == end


def test_only_headers_are_read(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwill.formats import Checkpoint

    monkeypatch.delattr(Checkpoint, "raw")
    assert structure(models.write(models.qwen3_06b)).mismatches == ()


def test_shards_are_one_model(models: Any) -> None:
    whole, parts = structure(models.write()), structure(models.write(shards=3))
    assert parts.parameters == whole.parameters
    assert sorted(parts.files) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_missing_unused_and_misshapen_tensors_are_told_and_do_not_stop_it(models: Any) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["visual.patch_embed.weight"] = ("F32", (3, 5))
        tensors["model.layers.0.self_attn.q_proj.weight"] = ("BF16", (7, 7))
        tensors["lm_head.weight"] = ("BF16", (2, 2))
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (8,))

    found = structure(models.write(change=damage))
    assert kinds(found) == {
        "missing": ("model.layers.1.mlp.up_proj.weight (96, 32)",),
        "unused": ("visual.patch_embed.weight (3, 5)",),
        "wrong shape": (
            "model.layers.0.self_attn.q_proj.weight: (7, 7), the configuration asks for (64, 32)",
            "lm_head.weight: (2, 2), the configuration asks for (320, 32)",
        ),
    }
    roles = {tensor.name: tensor.role for tensor in found.tensors if not tensor.is_counted}
    assert roles == {
        "visual.patch_embed.weight": "unused",
        "lm_head.weight": "tied copy",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "buffer",
    }


def test_without_a_configuration_the_tensors_can_still_be_seen(models: Any) -> None:
    folder = models.write()
    (folder / "config.json").unlink()
    found = structure(folder)
    assert (found.config, kinds(found)) == (None, {"config": ("there is no config.json",)})
    assert found.parameters.total == sum(tensor.numel for tensor in found.tensors)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "config.json is not valid JSON"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not implemented"),
        ('{"model_type": "qwen3"}', "num_attention_heads is missing"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_told(models: Any, text: str, reason: str) -> None:
    folder = models.write()
    (folder / "config.json").write_text(text)
    found = structure(folder)
    assert found.config is None
    assert found.mismatches[0].details[0].startswith(reason)


def test_one_safetensors_file_may_be_named(models: Any) -> None:
    folder = models.write()
    assert structure(folder / "model.safetensors").parameters == structure(folder).parameters


def test_a_header_that_cannot_be_read_is_a_format_error(models: Any) -> None:
    folder = models.write()
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(FormatError):
        structure(folder)


def test_nothing_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        structure(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("ids", "size"),
    [
        ([310, 311, 312], 313),
        ([0, 1, 2], None),  # before the vocabulary: its size stays unknown
        ([310, 312], None),
        ([319, 320], None),  # beyond the vocabulary
        ([], None),
    ],
)
def test_the_tokenizers_size_is_known_where_added_tokens_end_the_vocabulary(
    models: Any, ids: list[int], size: int | None
) -> None:
    folder = models.write()
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {str(i): {} for i in ids}}))
    assert structure(folder).tokenizer_size == size


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"added_tokens_decoder": 3}', '{"added_tokens_decoder": {"x": 1}}'])
def test_a_strange_tokenizer_config_is_no_matter(models: Any, text: str) -> None:
    folder = models.write()
    (folder / "tokenizer_config.json").write_text(text)
    assert structure(folder).tokenizer_size is None


def test_a_gguf_file_is_told_in_checkpoint_names(models: Any) -> None:
    found = structure(models.gguf({"blk.0.attn_q.weight": "Q4_K", "token_embd.weight": "Q6_K"}, unused_tokens=20))
    assert found.mismatches == ()
    assert found.tokenizer_size == 280
    by_name = {tensor.name: tensor for tensor in found.tensors}
    query = by_name["model.layers.0.self_attn.q_proj.weight"]
    assert (query.stored_name, query.dtype, query.shape) == ("blk.0.attn_q.weight", "Q4_K", (256, 256))
    assert query.nbytes == 256 * 144
    assert by_name["model.embed_tokens.weight"].role == "embedding"


@pytest.mark.weights
def test_a_real_gguf_takes_less_than_a_second(qwen_coder_gguf: Path) -> None:
    start = time.process_time()
    structure(qwen_coder_gguf)
    assert time.process_time() - start < 1


@pytest.mark.weights
def test_real_ggufs_have_the_parameters_of_their_models(qwen_coder_gguf: Path, smollm2_gguf: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for path, kind in ((qwen_coder_gguf, "qwen2"), (smollm2_gguf, "llama")):
        config = load_config(path)
        with torch.device("meta"):
            theirs = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(
                    kind,
                    vocab_size=config.vocab_size,
                    hidden_size=config.hidden_size,
                    intermediate_size=config.intermediate_size,
                    num_hidden_layers=config.num_layers,
                    num_attention_heads=config.num_heads,
                    num_key_value_heads=config.num_kv_heads,
                    tie_word_embeddings=config.tie_word_embeddings,
                )
            )
        found = structure(path)
        assert found.mismatches == ()
        assert found.parameters.total == theirs.num_parameters()
    assert found.parameters.total == 134_515_008  # SmolLM2-135M
    assert structure(qwen_coder_gguf).tokenizer_size == 151_665
