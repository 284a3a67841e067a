"""The watcher: sees every op and every module of a forward pass, times it, and keeps what it was asked to keep.

While a pass runs, hooks on the modules say where in the model it is, and the ops tell what they are given and what they
give back. Nothing is changed. Knows no engine and no request: rows are rows of the step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qwill.batch import Batch
from qwill.models.qwen3 import CausalLM
from qwill.quantization import PackedWeight
from qwill.tracing.costs import cost
from qwill.tracing.records import OpRecord

__all__ = ["Kept", "Watcher"]

Kept = dict[tuple[str, int], Tensor]
"""What one pass computed: (name, layer) -> rows of the step. Names are those of `Watcher`."""


class Watcher:
    """Notes the ops of a model's forward passes in `ops`, and keeps of each one:

    residuals  (T, C)       what goes into each layer, and at last what comes out of the last one: layers 0 … L
    attention  queries, keys before the rotation: (T, Hq, D) (T, Hkv, D); rotated_queries, rotated_keys after it,
               the keys as the cache holds them
    mlp        (T, F)       silu(gate) · up
    """

    def __init__(self, model: CausalLM, *, residuals: bool, attention: bool, mlp: bool, began: float) -> None:
        self.ops: list[OpRecord] = []
        self.kept: Kept = {}
        self.step = 0
        self._wants = {"residuals": residuals, "attention": attention, "mlp": mlp}
        self._began = began
        self._watching = False
        self._path: list[str] = []
        self._rotated: list[Tensor] = []  # what was given to be rotated in the current layer: queries, then keys
        self._wait = _waiting(model.lm_head.weight)
        streams = {id(model.model.embed_tokens): 0}
        streams |= {id(layer): number for number, layer in enumerate(model.model.layers, start=1)}
        self._hooks: list[Any] = []
        for name, module in model.named_modules():
            self._hook(name, module, streams.get(id(module)) if residuals else None)

    def remove(self) -> None:
        """Take the hooks off the model. May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def begin(self, step: int) -> None:
        """A forward pass begins."""
        self.step, self.kept, self._watching = step, {}, True
        self._path.clear()
        self._rotated.clear()

    def end(self) -> Kept:
        """The pass is over, or failed. Returns what was kept of it."""
        self._watching = False
        kept, self.kept = self.kept, {}
        return kept

    def call(self, op: str, backend: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make a call for an op, and note it."""
        self._wait()
        start = time.perf_counter()
        result = body(*arguments)
        self._wait()
        seconds = time.perf_counter() - start
        nbytes, operations = cost(op, arguments, result)
        tensors = [value for value in arguments if isinstance(value, Tensor | PackedWeight)]
        weight = arguments[1] if op in ("linear", "embedding") else tensors[0]
        module = self._path[-1] if self._path else ""
        layer = _layer(module)
        self.ops.append(
            OpRecord(
                step=self.step,
                op=op,
                module=module,
                layer=layer,
                backend=backend if isinstance(weight, PackedWeight) or op != "linear" else "reference",
                inputs=tuple(tuple(value.shape) for value in tensors),
                output=tuple((result[0] if isinstance(result, tuple) else result).shape),
                dtype=_dtype(weight),
                start=start - self._began,
                seconds=seconds,
                nbytes=nbytes,
                operations=operations,
            )
        )
        if layer is not None:
            self._keep(op, layer, arguments, result)
        return result

    def _keep(self, op: str, layer: int, arguments: tuple[Any, ...], result: Any) -> None:
        if op == "silu_and_mul" and self._wants["mlp"]:
            self.kept["mlp", layer] = result
        if not self._wants["attention"]:
            return
        if op == "rope":
            self._rotated.append(arguments[0].clone())  # a view would hold the values beside it, uncounted
        elif op == "attention":
            q, k, _, batch, _ = arguments
            self.kept["queries", layer], self.kept["keys", layer] = self._rotated
            self.kept["rotated_queries", layer] = q
            self.kept["rotated_keys", layer] = _as_cached(k, batch, layer)
            self._rotated = []

    def _hook(self, name: str, module: nn.Module, stream: int | None) -> None:
        def enter(_module: nn.Module, _inputs: Any) -> None:
            self._path.append(name)

        def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._path:
                self._path.pop()
            if self._watching and stream is not None and isinstance(output, Tensor):
                self.kept["residuals", stream] = output

        self._hooks += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        ]


def _layer(module: str) -> int | None:
    found = re.match(r"model\.layers\.(\d+)", module)
    return int(found[1]) if found else None


def _dtype(value: Tensor | PackedWeight) -> str:
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.")
    return "+".join(dict.fromkeys(part.format.name for part in value.parts))


def _as_cached(k: Tensor, batch: Batch, layer: int) -> Tensor:
    """The step's keys (T, Hkv, D) as attention reads them: rounded to the cache's number format."""
    if batch.kv_cache is None:
        return k
    return batch.kv_cache.keys_at(layer, batch.slot_mapping)


def _waiting(weight: Tensor | PackedWeight) -> Callable[[], None]:
    """What to call so that all work is done: on a GPU, calls return before their work is."""
    device = weight.device if isinstance(weight, Tensor) else torch.device("cpu")
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return torch.mps.synchronize if device.type == "mps" else lambda: None
