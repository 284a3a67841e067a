"""From a checkpoint's tensors to the model's parameters, with strict accounting.

Names and shapes are compared before anything is loaded: all that is missing, unused or of the wrong shape is reported
in one error. Then each parameter is filled (copied or dequantized), or packed for the native kernels, and the file's
pages are given back. Knows no text, no scheduling, no network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qwill.checkpoint_names import EMBEDDING, GGUF_ROTARY_PERMUTED, LM_HEAD, expected_tensors, match_tensors
from qwill.checkpoint_values import TORCH_DTYPES, half_split_order, raw_rows, row_bytes, values_of_rows
from qwill.config import ModelConfig
from qwill.errors import CapacityError, WeightsError
from qwill.formats import Checkpoint, TensorInfo
from qwill.models.qwen3 import FUSED, CausalLM
from qwill.packing import Matrix, Packing, pack_tensor, packed_nbytes
from qwill.quantization import PackedWeight, is_sensitive
from qwill.system import available_memory

__all__ = ["Target", "decode_bytes", "load_model", "parameter_targets", "rotated_heads", "weights_of"]

PIECE = 1 << 22
"""Bytes of a file that are converted at a time."""

LISTED = 10
"""At most so many tensor names of a kind appear in an error."""


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
    packing: Packing | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> CausalLM:
    """A model with all of its weights, ready to run. `advance` is told the file bytes of each tensor when it is done.

    With a `packing`, matrices become `PackedWeight`s for the native kernels; all else is of `dtype`, fp32 then.

    Raises:
        WeightsError: tensors are missing, unused, of the wrong shape, or a tied lm_head differs from the embedding.
        CapacityError: there is not enough memory.
        FormatError: a tensor's data breaks its format's rules.
    """
    source = _Source(checkpoint, config, _matching_tensors(checkpoint, config), advance)
    _check_memory(source, dtype, packing, device)
    with torch.device("meta"):
        model = CausalLM(config)
    contents: dict[str, list[str]] = {}
    for name, target in parameter_targets(config).items():
        contents.setdefault(target.parameter, []).append(name)

    def load(names: list[str]) -> Tensor | PackedWeight:
        if packing is not None and len(source.found[names[0]].shape) == 2:
            return source.packed(names, packing)
        return source.tensor(names, dtype, device)

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            jobs = {parameter: pool.submit(load, names) for parameter, names in contents.items()}
            for parameter, job in jobs.items():
                _put(model, parameter, job.result())
        except BaseException:  # Ctrl-C too: the tensors that wait need not be loaded first
            pool.shutdown(cancel_futures=True)
            raise
    if config.tie_word_embeddings:
        _put(model, LM_HEAD, model.model.embed_tokens.weight)
        source.check_tied_copy()
    return model.eval()


def decode_bytes(model: CausalLM) -> int:
    """Bytes of weights that one decoded token reads: all of them, but of an untied embedding only a row."""
    table, head = model.model.embed_tokens.weight, model.lm_head.weight
    return sum(weight.nbytes for weight in weights_of(model)) - (0 if table is head else table.nbytes)


def weights_of(model: nn.Module) -> list[Tensor | PackedWeight]:
    """Every weight and bias of a model, plain or packed; a tied one once."""
    owners = [vars(module) | module._parameters for module in model.modules()]
    found = [owner[name] for owner in owners for name in ("weight", "bias") if owner.get(name) is not None]
    return list({id(weight): weight for weight in found}.values())


def _put(model: CausalLM, parameter: str, value: Tensor | PackedWeight) -> None:
    """Give a parameter its value; a packed one is a plain attribute of its module."""
    path, name = parameter.rsplit(".", 1)
    module = model.get_submodule(path)
    delattr(module, name)
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=False)
    setattr(module, name, value)


@dataclass(frozen=True)
class _Source:
    """A checkpoint whose tensors were found to be what the configuration asks for."""

    checkpoint: Checkpoint
    config: ModelConfig
    found: dict[str, TensorInfo]
    advance: Callable[[int], None]

    def tensor(self, names: list[str], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The rows of some tensors one after another, in `dtype`."""
        rows = sum(self.found[name].shape[0] for name in names)
        out = torch.empty((rows, *self.found[names[0]].shape[1:]), dtype=dtype, device=device)
        start = 0
        for name in names:
            info = self.found[name]
            self._fill(out[start : start + info.shape[0]], info, self.rotated_heads(name))
            start += info.shape[0]
            self.checkpoint.release(info.name)
        return out

    def packed(self, names: list[str], packing: Packing) -> PackedWeight:
        """The same, as parts of a packed weight."""
        parts = []
        for name in names:
            info = self.found[name]
            matrix = Matrix(self.checkpoint, info, self.rotated_heads(name), self.is_sensitive(name))
            parts.append(pack_tensor(matrix, packing, self.advance))
            self.checkpoint.release(info.name)
        return PackedWeight(self.found[names[0]].shape[1], tuple(parts))

    def is_sensitive(self, name: str) -> bool:
        """Whether a matrix keeps 8 bits where others get 4."""
        return is_sensitive(name, self.config.num_layers)

    def rotated_heads(self, name: str) -> int | None:
        """The head_dim where a tensor's rows are in GGUF's rotary order."""
        return rotated_heads(self.checkpoint, self.config, name)

    def _fill(self, rows: Tensor, info: TensorInfo, rotated_heads: int | None) -> None:
        """Write a tensor into `rows`, some rows at a time so that temporaries stay small."""
        step = len(rows) if rotated_heads else max(1, PIECE // max(row_bytes(info), 1))
        for start in range(0, len(rows), step):
            stop = min(start + step, len(rows))
            part = rows[start:stop]
            if rotated_heads is not None:
                order = half_split_order(stop - start, rotated_heads)
                part.copy_(values_of_rows(self.checkpoint, info, start, stop)[order])
            elif TORCH_DTYPES.get(info.dtype) == rows.dtype and rows.device.type == "cpu":
                part.view(torch.uint8).flatten().numpy()[:] = raw_rows(self.checkpoint, info, start, stop)
            else:
                part.copy_(values_of_rows(self.checkpoint, info, start, stop))
            self.advance((stop - start) * row_bytes(info))

    def check_tied_copy(self) -> None:
        """A tied checkpoint may carry lm_head.weight too (Qwen3-0.6B does); then it must be the embedding."""
        if LM_HEAD not in self.found:
            return
        copy, embedding = self.found[LM_HEAD], self.found[EMBEDDING]
        pieces = (_pieces(self.checkpoint.raw(info.name)) for info in (copy, embedding))
        same = copy.dtype == embedding.dtype and all(np.array_equal(a, b) for a, b in zip(*pieces, strict=True))
        for info in (copy, embedding):
            self.checkpoint.release(info.name)
        if not same:
            raise WeightsError(
                "tie_word_embeddings is true, but lm_head.weight differs from the embedding",
                where=str(self.checkpoint.path),
                hint="one of the two is wrong: set tie_word_embeddings to false in config.json if the head is its own",
            )
        self.advance(copy.nbytes)


def rotated_heads(checkpoint: Checkpoint, config: ModelConfig, name: str) -> int | None:
    """The head_dim where the rows of the tensor of this Hugging Face name are in GGUF's rotary order."""
    permuted = checkpoint.format == "gguf" and config.architecture in GGUF_ROTARY_PERMUTED
    return config.head_dim if permuted and re.search(r"\.self_attn\.[qk]_proj\.", name) else None


def _pieces(raw: npt.NDArray[np.uint8], size: int = 1 << 24) -> Iterable[npt.NDArray[np.uint8]]:
    return (raw[start : start + size] for start in range(0, len(raw), size))


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


def _check_memory(source: _Source, dtype: torch.dtype, packing: Packing | None, device: torch.device) -> None:
    need = 0
    for name, shape in expected_tensors(source.config).items():
        if packing is not None and len(shape) == 2:
            need += packed_nbytes(source.found[name], packing, sensitive=source.is_sensitive(name))
        else:
            need += int(np.prod(shape)) * dtype.itemsize
    have = available_memory()
    if device.type == "cpu" and have is not None and need > have:
        raise CapacityError(
            f"the weights need {need / 2**30:.1f} GiB in memory, and {have / 2**30:.1f} GiB are available",
            hint="use quant='int4', a smaller model, or close other programs",
        )
