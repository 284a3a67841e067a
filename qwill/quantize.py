"""A model's folder made into a quantized one, which loads at once: `qwill quantize`.

Tensor after tensor is read, quantized on all cores, packed and written, so that no more than a few are in memory. The
folder gets its name when it is whole. Knows nothing of how weights are quantized, and of command lines.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from qwill.checkpoint_names import EMBEDDING, LM_HEAD, expected_tensors, match_tensors
from qwill.checkpoint_values import TORCH_DTYPES
from qwill.config import ModelConfig, load_config
from qwill.errors import DiskSpaceError, UsageError, WeightsError
from qwill.formats import Checkpoint, TensorInfo, open_checkpoint
from qwill.formats.folder import allowed_file
from qwill.formats.packed import quantization_config
from qwill.hub.files import wanted_files
from qwill.hub.progress import Progress, format_bytes
from qwill.packing import Matrix, Packing, pack_tensor
from qwill.quantization import is_sensitive, quantized_format
from qwill.quantized_checkpoint import StoredTensor, write_weights
from qwill.system import usable_cores

__all__ = ["QuantizedFolder", "quantize_folder"]

WEIGHTS = "model.safetensors"

AHEAD = 64
"""Tensors that may be ready before they are written: while one core works at the embedding, the others go on."""


@dataclass(frozen=True)
class QuantizedFolder:
    """What was made.

    Attributes:
        weights: how many there are.
        weight_bytes: what they take, with scales and padding.
        source_bytes: what they took before.
        formats: weights of each format.
    """

    path: Path
    weights: int
    weight_bytes: int
    source_bytes: int
    formats: dict[str, int]

    @property
    def bits_per_weight(self) -> float:
        """Of all weights, norms and biases included."""
        return 8 * self.weight_bytes / self.weights


def quantize_folder(source: Path, out: Path, quant: str, *, force: bool, progress: Progress) -> QuantizedFolder:
    """Write the model of folder `source` to a new folder `out`, its matrices in `quant` ("int4" or "int8").

    Raises:
        UsageError: `source` is no folder of floats, or `out` may not be written or replaced.
        DiskSpaceError: there is not enough room.
        QwillError: the model cannot be read.
    """
    if not source.is_dir():
        hint = "a GGUF file runs as it is; `qwill quantize` takes a folder with config.json and *.safetensors"
        raise UsageError("only a model's folder can be quantized", where=str(source), hint=hint)
    _check_target(source, out, force=force)
    config = load_config(source)
    with open_checkpoint(source) as checkpoint:
        found = _tensors(checkpoint, config)
        plan = [_planned(name, info, quant, config.num_layers) for name, info in found.items()]
        plan.sort(key=lambda tensor: not tensor.is_packed)
        needed = sum(tensor.stored_bytes for tensor in plan)
        _check_room(out, needed)
        with _new_folder(out) as folder:
            progress.start(sum(info.nbytes for info in found.values()), f"quantize to {quant}")
            try:
                write_weights(folder / WEIGHTS, plan, _contents(checkpoint, found, plan, quant, progress.advance))
            finally:
                progress.finish()
            _copy_side_files(source, folder, quant)
    formats: dict[str, int] = {}
    for tensor in plan:
        formats[tensor.dtype] = formats.get(tensor.dtype, 0) + int(np.prod(tensor.shape))
    before = sum(info.nbytes for info in found.values())
    return QuantizedFolder(out, sum(formats.values()), needed, before, formats)


def _tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, TensorInfo]:
    """Every tensor that the model needs; a tied head is not needed twice."""
    match = match_tensors(checkpoint, config)
    wrong = [*match.missing, *(info.name for info in match.unused), *(info.name for info, _ in match.wrong_shape)]
    if wrong:
        what = f"{len(wrong)} tensors are missing, unused or of the wrong shape: {', '.join(wrong[:5])}"
        raise WeightsError(what, where=str(checkpoint.path), hint="`qwill verify` says what is wrong")
    found = {name: match.found[name] for name in expected_tensors(config)}
    for name, info in found.items():
        if info.dtype not in TORCH_DTYPES:
            hint = "quantize from the weights in bf16, fp16 or fp32"
            raise UsageError(f"{name} is of type {info.dtype}", where=str(checkpoint.path), hint=hint)
    head = match.found.get(LM_HEAD)
    if head is not None and LM_HEAD not in found:
        same = head.dtype == found[EMBEDDING].dtype
        if not same or not np.array_equal(checkpoint.raw(head.name), checkpoint.raw(found[EMBEDDING].name)):
            what = "tie_word_embeddings is true, but lm_head.weight differs from the embedding"
            raise WeightsError(what, where=str(checkpoint.path), hint="`qwill verify` checks the files")
    return found


def _planned(name: str, info: TensorInfo, quant: str, num_layers: int) -> StoredTensor:
    if len(info.shape) != 2:
        return StoredTensor(name, info.dtype, info.shape)
    return StoredTensor(name, quantized_format(quant, sensitive=is_sensitive(name, num_layers)).name, info.shape)


def _contents(
    checkpoint: Checkpoint,
    found: dict[str, TensorInfo],
    plan: Iterable[StoredTensor],
    quant: str,
    advance: Callable[[int], None],
) -> Iterator[memoryview]:
    """The bytes of each tensor, made side by side."""
    packing = Packing(torch.float32, quant)
    stopped = threading.Event()

    def told(count: int) -> None:
        if stopped.is_set():  # Ctrl-C need not wait for the end of a large matrix
            raise CancelledError
        advance(count)

    def content(tensor: StoredTensor) -> memoryview:
        info = found[tensor.name]
        if tensor.is_packed:
            part = pack_tensor(Matrix(checkpoint, info, None, tensor.dtype == "int8"), packing, told)
            data = part.data.numpy().data
        else:
            data = checkpoint.raw(info.name).data
            told(info.nbytes)
        checkpoint.release(info.name)
        return data

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors side by side keep the cores busier than one tensor on all of them
    waiting: deque[Future[memoryview]] = deque()
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        try:
            for tensor in plan:
                waiting.append(pool.submit(content, tensor))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)


def _check_target(source: Path, out: Path, *, force: bool) -> None:
    if out.resolve() == source.resolve() or out.resolve() in source.resolve().parents:
        raise UsageError("the new folder would replace the model itself", where=str(out), hint="give another name")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / "config.json").is_file():
        raise UsageError("there is something else of this name", where=str(out), hint="give another name")
    if not force:
        raise UsageError("there is a model of this name", where=str(out), hint="--force replaces it")


def _check_room(out: Path, needed: int) -> None:
    place = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        what = f"the quantized model needs {format_bytes(needed)}, but only {format_bytes(free)} are free"
        raise DiskSpaceError(what, where=str(place), hint="free some space, or write to another disk")


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that gets its name at the end; what had the name goes then, and not before.

    Raises:
        DiskSpaceError, UsageError: the disk is full or may not be written.
    """
    scratch = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        folder = scratch / "new"
        folder.mkdir()
        yield folder
        for file in folder.iterdir():
            with file.open("rb+") as written:
                os.fsync(written.fileno())
        if out.exists():
            out.rename(scratch / "old")
        folder.rename(out)
    except OSError as error:
        raise DiskSpaceError(
            f"the folder cannot be written: {error.strerror}", where=str(out), hint="nothing was changed"
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _copy_side_files(source: Path, folder: Path, quant: str) -> None:
    """Tokenizer, generation settings and licence as they are; config.json says that the weights are packed."""
    names = [entry.name for entry in source.iterdir() if entry.is_file()]
    for name in wanted_files(names, None, str(source)):
        if not name.endswith((".safetensors", ".safetensors.index.json")):
            shutil.copyfile(allowed_file(source, name), folder / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantization_config(quant)
    (folder / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
