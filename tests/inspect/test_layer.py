from __future__ import annotations

from typing import Any

import pytest

from qwill.errors import SettingError
from qwill.inspect.layer import in_numbers, layer_steps, letters
from qwill.inspect.structure import shape_text, structure

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {"model_type": "qwen2", "head_dim": 8},
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 8},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_of_the_layer_is_in_one_step_and_its_letters_give_its_shape(name: str, models: Any) -> None:
    found = structure(models.write(models.tiny | CONFIGS[name]))
    assert found.config is not None
    steps = layer_steps(found, 1)
    ours = [tensor.name for step in steps for tensor in step.tensors]
    assert sorted(ours) == sorted(t.name for t in found.tensors if t.name.startswith("model.layers.1."))
    for step in steps:
        for tensor in step.tensors:
            if tensor.label == "weight":
                assert in_numbers(step.letters, found.config) == shape_text(tensor.shape)


@pytest.mark.parametrize("name", CONFIGS)
def test_results_have_the_shapes_that_transformers_modules_give(name: str, models: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = models.write(models.tiny | CONFIGS[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes: dict[str, tuple[int, ...]] = {}
    layer = model.get_submodule("model.layers.1")
    for label, module in layer.named_modules():
        module.register_forward_hook(lambda _m, _x, out, label=label: shapes.setdefault(label, out))
    model(torch.zeros((1, 5), dtype=torch.long, device="meta"))
    for step in layer_steps(structure(folder), 1):
        if step.letters:
            theirs = shapes[step.label]
            assert isinstance(theirs, torch.Tensor)
            sizes = [int(size) for size in step.output.strip("()").split(", ")[1:]]
            assert theirs.numel() == 5 * torch.Size(sizes).numel(), step.label


def test_a_step_whose_weight_is_missing_is_still_there(models: Any) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        del tensors["model.layers.0.self_attn.k_norm.weight"]

    steps = {step.label: step for step in layer_steps(structure(models.write(change=damage)), 0)}
    assert steps["self_attn.k_norm"].tensors == ()


def test_qwen2_has_no_steps_for_norms_it_does_not_have(models: Any) -> None:
    labels = [step.label for step in layer_steps(structure(models.write(models.tiny | CONFIGS["qwen2"])), 0)]
    assert not any(label.endswith(("q_norm", "k_norm")) for label in labels)


@pytest.mark.parametrize("layer", [-1, 3, 10**9])
def test_a_layer_that_is_not_there_is_a_typed_error_with_the_range(models: Any, layer: int) -> None:
    with pytest.raises(SettingError, match=r"0 … 2"):
        layer_steps(structure(models.write()), layer)


def test_without_a_configuration_it_is_a_typed_error(models: Any) -> None:
    with pytest.raises(SettingError, match="configuration"):
        layer_steps(structure(models.write({}, tensors={"a": ("F32", (1,))})), 0)


def test_the_letters_are_explained(models: Any) -> None:
    config = structure(models.write()).config
    assert config is not None
    for part in ("C = 32", "Hq = 4", "Hkv = 2", "D = 16", "F = 96"):
        assert part in letters(config)
