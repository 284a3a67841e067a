"""From a checkpoint's tensors to the model's parameters, with strict accounting.

Names and shapes are compared before anything is loaded: all that is missing, unused or of the wrong shape is reported
in one error. Then each tensor is copied, or dequantized, into its rows of a parameter, and its pages are given back.
Knows no text, no scheduling, no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qwill.checkpoint_names import EMBEDDING, GGUF_ROTARY_PERMUTED, LM_HEAD, expected_tensors, match_tensors
from qwill.config import ModelConfig
from qwill.errors import CapacityError, WeightsError
from qwill.formats import Checkpoint, TensorInfo
from qwill.formats.dequantize import DEQUANTIZABLE, dequantize
from qwill.models.qwen3 import FUSED, CausalLM
from qwill.system import available_memory

__all__ = ["Target", "load_model", "parameter_targets"]

PIECE = 1 << 22
"""Bytes of a file that are converted at a time."""

LISTED = 10
"""At most so many tensor names of a kind appear in an error."""

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Target:
    """Where a checkpoint tensor goes: rows `start` … `start + rows` of one parameter."""

    parameter: str
    start: int
    rows: int


def load_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    advance: Callable[[int], None] = lambda _: None,
) -> CausalLM:
    """A model with all of its weights, ready to run. `advance` is told the file bytes of each tensor when it is done.

    Raises:
        WeightsError: tensors are missing, unused, of the wrong shape, or a tied lm_head differs from the embedding.
        CapacityError: there is not enough memory.
        FormatError: a tensor's data breaks its format's rules.
    """
    found = _matching_tensors(checkpoint, config)
    _check_memory(config, dtype, device)
    model = _empty_model(config, dtype, device)
    parameters = dict(model.named_parameters())
    permuted = checkpoint.format == "gguf" and config.architecture in GGUF_ROTARY_PERMUTED

    def load(name: str, target: Target) -> None:
        rows = parameters[target.parameter][target.start : target.start + target.rows]
        rotated = permuted and re.search(r"\.self_attn\.[qk]_proj\.", name) is not None
        for nbytes in _fill(rows, checkpoint, found[name], rotated_heads=config.head_dim if rotated else None):
            advance(nbytes)
        checkpoint.release(found[name].name)

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            for done in [pool.submit(load, name, target) for name, target in parameter_targets(config).items()]:
                done.result()
        except BaseException:  # Ctrl-C too: the tensors that wait need not be loaded first
            pool.shutdown(cancel_futures=True)
            raise
    if config.tie_word_embeddings and LM_HEAD in found:
        _check_tied_copy(checkpoint, found)
        advance(found[LM_HEAD].nbytes)
    return model


def _empty_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """A model whose parameters are reserved, not written. (`nn.Module.to_empty` would import sympy, which is slow.)"""
    with torch.device("meta"):
        model = CausalLM(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=False))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval()


def parameter_targets(config: ModelConfig) -> dict[str, Target]:
    """Checkpoint name -> its place among the model's parameters, where q, k, v and gate, up share a matrix."""
    ours = {part: (fused, parts) for fused, parts in FUSED.items() for part in parts}
    shapes = expected_tensors(config)
    targets = {}
    for name, shape in shapes.items():
        stem, module, kind = name.rsplit(".", 2) if name.count(".") >= 2 else ("", *name.split("."))
        fused, parts = ours.get(module, (module, (module,)))
        before = parts[: parts.index(module)]
        start = sum(shapes[f"{stem}.{part}.{kind}"][0] for part in before)
        targets[name] = Target(".".join(filter(None, (stem, fused, kind))), start, shape[0])
    return targets


def _matching_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, TensorInfo]:
    """Hugging Face name -> tensor, for every tensor of the checkpoint that the model uses.

    Raises:
        WeightsError: one error that lists what is missing, unused and of the wrong shape.
    """
    match = match_tensors(checkpoint, config)
    problems = [
        _listing("missing", list(match.missing)),
        _listing("unused", [info.name for info in match.unused]),
        _listing("wrong shape", [f"{info.name}: want {want}, got {info.shape}" for info, want in match.wrong_shape]),
    ]
    if any(problems):
        raise WeightsError(
            "the checkpoint's tensors do not match its configuration\n" + "\n".join(filter(None, problems)),
            where=str(checkpoint.path),
            hint="is this the config.json of these weights? `qwill verify` checks the files",
        )
    return match.found


def _listing(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"  {what} ({len(names)}): " + "; ".join(names[:LISTED]) + more


def _check_memory(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
    need = sum(int(np.prod(shape)) for shape in expected_tensors(config).values()) * dtype.itemsize
    have = available_memory()
    if device.type == "cpu" and have is not None and need > have:
        raise CapacityError(
            f"the weights need {need / 2**30:.1f} GiB in {dtype}, and {have / 2**30:.1f} GiB of memory are available",
            hint="use dtype='bfloat16', a smaller model, or close other programs",
        )


def _fill(rows: Tensor, checkpoint: Checkpoint, info: TensorInfo, *, rotated_heads: int | None) -> Iterator[int]:
    """Write a tensor into `rows`, some rows at a time so that temporaries stay small; yields the bytes read.

    `rotated_heads` is the head_dim where rows are to be put back from GGUF's rotary order, else None.
    """
    raw = checkpoint.raw(info.name)
    row_bytes = info.nbytes // len(rows)
    step = max(1, PIECE // max(row_bytes, 1)) if rotated_heads is None else len(rows)
    for start in range(0, len(rows), step):
        piece = raw[start * row_bytes : (start + step) * row_bytes]
        part = rows[start : start + step]
        if rotated_heads is not None:
            part.copy_(_half_split_rows(_values(piece, info, part.shape), rotated_heads))
        elif TORCH_DTYPES.get(info.dtype) == rows.dtype and rows.device.type == "cpu":
            part.view(torch.uint8).flatten().numpy()[:] = piece
        else:
            part.copy_(_values(piece, info, part.shape))
        yield len(piece)


def _values(raw: npt.NDArray[np.uint8], info: TensorInfo, shape: torch.Size) -> Tensor:
    """Whole rows of a tensor: a copy in its own dtype, or dequantized to fp32."""
    if info.dtype in TORCH_DTYPES:
        copy = torch.empty(len(raw), dtype=torch.uint8)
        copy.numpy()[:] = raw  # by way of numpy, because torch warns of read-only memory
        return copy.view(TORCH_DTYPES[info.dtype]).view(shape)
    if info.dtype not in DEQUANTIZABLE:
        raise WeightsError(f"dtype {info.dtype} is not implemented", where=f"{info.file}, tensor {info.name}")
    return torch.from_numpy(dequantize(raw, info.dtype, shape))


def _half_split_rows(values: Tensor, head_dim: int) -> Tensor:
    """Undo GGUF's reordering of q and k for interleaved rotary positions: rows 0 2 4 … 1 3 5 … of each head."""
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def _check_tied_copy(checkpoint: Checkpoint, found: dict[str, TensorInfo]) -> None:
    """A tied checkpoint may carry lm_head.weight too (Qwen3-0.6B does); then it must be the embedding."""
    copy, embedding = found[LM_HEAD], found[EMBEDDING]
    same = copy.dtype == embedding.dtype and all(
        np.array_equal(a, b) for a, b in zip(*(_pieces(checkpoint.raw(i.name)) for i in (copy, embedding)), strict=True)
    )
    for info in (copy, embedding):
        checkpoint.release(info.name)
    if not same:
        raise WeightsError(
            "tie_word_embeddings is true, but lm_head.weight differs from the embedding",
            where=str(checkpoint.path),
            hint="one of the two is wrong: set tie_word_embeddings to false in config.json if the head is its own",
        )


def _pieces(raw: npt.NDArray[np.uint8], size: int = 1 << 24) -> Iterable[npt.NDArray[np.uint8]]:
    return (raw[start : start + size] for start in range(0, len(raw), size))
