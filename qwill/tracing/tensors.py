"""What a trace kept of one request, as a safetensors file: residual stream, attention weights and MLP activations."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from qwill.errors import CapacityError, SettingError
from qwill.system import available_memory
from qwill.tracing.export import FORMAT
from qwill.tracing.request_trace import RequestTrace
from qwill.tracing.trace import Trace
from qwill.whole_file import whole_file

__all__ = ["KINDS", "check_kinds", "write_tensors"]

KINDS = ("residuals", "attention", "mlp")
"""What can be kept: the names of `trace`'s arguments."""


def check_kinds(names: Collection[str]) -> None:
    """Refuse what nobody can keep.

    Raises:
        SettingError: an unknown name.
    """
    for name in names:
        if name not in KINDS:
            raise SettingError(f"{name!r:.100} is nothing that a trace can keep", hint="allowed: " + ", ".join(KINDS))


def write_tensors(trace: Trace, path: str | Path, kinds: Collection[str], *, request_id: str | None = None) -> None:
    """Write what was kept of one request, without a name the only one:

    token_ids          (N,) int64: prompt and answer, as far as they were computed
    residuals          (L + 1, T, C) fp32: embeddings, then the stream after each layer, before the last norm
    attention.LAYER    (Hq, T, N) fp32: rows add up to 1
    mlp.LAYER          (T, F) fp32: silu(gate) · up

    T are the positions from "first" on. The metadata says which model, request, prompt length and first position.

    Raises:
        SettingError: an unknown kind, one that was not kept, or not exactly one request.
        CapacityError: they do not fit into half of the free memory, or were too much to keep.
        OSError: the file cannot be written; what was there before is still there.
    """
    check_kinds(kinds)
    seen = trace.request(request_id)
    _check_room(trace, seen, kinds)
    tensors = dict(_tensors(trace, seen, kinds))
    metadata = {
        "format": f"qwill-trace-{FORMAT}",
        "model": _text(trace.model_name),
        "request_id": _text(seen.request_id),
        "num_prompt_tokens": str(seen.num_prompt_tokens),
        "first": str(seen.first),
    }
    with whole_file(path) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:  # the library's word for a full disk, too
            raise OSError(errno.EIO, str(error), str(path)) from error


def _tensors(trace: Trace, seen: RequestTrace, kinds: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    yield "token_ids", torch.tensor(seen.token_ids)
    if "residuals" in kinds:
        yield "residuals", seen.residuals
    of_a_layer: dict[str, Callable[[int], Tensor]] = {"attention": seen.attention, "mlp": seen.mlp}
    for kind, rows in of_a_layer.items():
        for layer in range(trace.config.num_layers if kind in kinds else 0):
            yield f"{kind}.{layer}", rows(layer).contiguous()


def _text(name: str) -> str:
    """A name as valid UTF-8: a file's or a request's need not be."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_room(trace: Trace, seen: RequestTrace, kinds: Collection[str]) -> None:
    """All tensors are in memory at once while the file is written."""
    config, n = trace.config, len(seen.token_ids)
    t = n - seen.first
    numbers = {
        "residuals": (config.num_layers + 1) * t * config.hidden_size,
        "attention": config.num_layers * config.num_heads * t * n,
        "mlp": config.num_layers * t * config.intermediate_size,
    }
    need, free = 4 * sum(numbers[kind] for kind in kinds), available_memory()
    if free is not None and need > free // 2:
        raise CapacityError(
            f"{', '.join(kinds)} of {n} tokens are {need / 2**30:.1f} GiB, more than half of the free memory",
            hint="trace a shorter text, or keep fewer kinds",
        )
