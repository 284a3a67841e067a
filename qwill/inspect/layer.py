"""What happens in one layer, step by step, with the shapes of a given model: a worked example.

The letters are those of the whole project: T new tokens, C hidden_size, Hq heads, Hkv kv heads, D head_dim,
F intermediate_size. Words and numbers only; knows nothing of how they are laid out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from qwill.config import ModelConfig
from qwill.errors import SettingError
from qwill.inspect.modules import Tensor
from qwill.inspect.structure import Structure

__all__ = ["Step", "layer_steps", "letters"]


@dataclass(frozen=True)
class Step:
    """One step of a layer.

    Attributes:
        label: the module's name within the layer; for a step without weights, the operation's name.
        letters: the weight's shape in letters, "(Hq·D, C)"; empty for a step without weights.
        tensors: the weight and perhaps the bias; empty when there are none, or when the file lacks them.
        output: the shape of what comes out, in numbers; T, the number of tokens, stays a letter.
        meaning: what the step does.
    """

    label: str
    letters: str
    tensors: tuple[Tensor, ...]
    output: str
    meaning: str


_STEPS = (
    ("input_layernorm", "(C)", "(T, C)", "bring each token's vector to one length, then scale it by the weight"),
    ("self_attn.q_proj", "(Hq·D, C)", "(T, Hq, D)", "queries: what each head looks for"),
    ("self_attn.q_norm", "(D)", "(T, Hq, D)", "norm each query"),
    ("self_attn.k_proj", "(Hkv·D, C)", "(T, Hkv, D)", "keys: what each token can be found by; cached"),
    ("self_attn.k_norm", "(D)", "(T, Hkv, D)", "norm each key"),
    ("self_attn.v_proj", "(Hkv·D, C)", "(T, Hkv, D)", "values: what each token hands over; cached"),
    ("rope", "", "(T, Hq, D)", "turn queries and keys by their position"),
    ("attention", "", "(T, Hq, D)", "each query weighs the keys up to its own position and averages their values"),
    ("self_attn.o_proj", "(C, Hq·D)", "(T, C)", "mix the heads' results into one vector"),
    ("add", "", "(T, C)", "to what came into the layer"),
    ("post_attention_layernorm", "(C)", "(T, C)", "norm again"),
    ("mlp.gate_proj", "(F, C)", "(T, F)", "how far to open each of the inner numbers"),
    ("mlp.up_proj", "(F, C)", "(T, F)", "the inner numbers"),
    ("silu_and_mul", "", "(T, F)", "silu(gate) × up"),
    ("mlp.down_proj", "(C, F)", "(T, C)", "back to one vector"),
    ("add", "", "(T, C)", "to what came into the MLP"),
)


def layer_steps(structure: Structure, layer: int) -> list[Step]:
    """The steps of one layer, in the order in which they are computed.

    Raises:
        SettingError: there is no such layer, or no configuration that explains it.
    """
    config = structure.config
    if config is None:
        raise SettingError("a layer is explained by the configuration, which cannot be read", where=structure.name)
    if not 0 <= layer < config.num_layers:
        hint = f"allowed: 0 … {config.num_layers - 1}"
        raise SettingError(f"layer = {layer}: there is no such layer", where=structure.name, hint=hint)
    prefix = f"model.layers.{layer}."
    here = {tensor.name.removeprefix(prefix): tensor for tensor in structure.tensors if tensor.name.startswith(prefix)}
    steps = []
    for label, shape, output, meaning in _STEPS:
        tensors = tuple(here[name] for name in (f"{label}.weight", f"{label}.bias") if name in here)
        if config.qk_norm or tensors or not label.endswith(("q_norm", "k_norm")):
            steps.append(Step(label, shape, tensors, in_numbers(output, config), meaning))
    return steps


def letters(config: ModelConfig) -> str:
    """What the letters of the shapes stand for."""
    return (
        f"T tokens at once, C = {config.hidden_size} hidden_size, Hq = {config.num_heads} heads, "
        f"Hkv = {config.num_kv_heads} kv heads, D = {config.head_dim} head_dim, "
        f"F = {config.intermediate_size} intermediate_size"
    )


def in_numbers(shape: str, config: ModelConfig) -> str:
    """A shape in letters with the model's numbers put in and multiplied out: "(Hq·D, C)" -> "(2048, 1024)"."""
    values = {
        "C": config.hidden_size,
        "Hq": config.num_heads,
        "Hkv": config.num_kv_heads,
        "D": config.head_dim,
        "F": config.intermediate_size,
    }

    def number(match: re.Match[str]) -> str:
        return str(math.prod(values[letter] for letter in match[0].split("·")))

    return re.sub(r"(?:C|Hq|Hkv|D|F)(?:·(?:C|Hq|Hkv|D|F))*", number, shape)
