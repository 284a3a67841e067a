"""What is measured: a model found on this machine, its number format, and the prompts; the same for everybody.

Torch-free. Knows no contestant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from qwill.bench.contestants import Setup
from qwill.bench.prompts import make_prompts
from qwill.bench.random_model import is_random, random_model
from qwill.checkpoint_names import EMBEDDING, expected_tensors
from qwill.config import ModelConfig, load_config
from qwill.errors import BenchmarkError
from qwill.formats import open_checkpoint
from qwill.hub import resolve
from qwill.hub.progress import Progress
from qwill.settings import EngineSettings
from qwill.system import usable_cores
from qwill.tokenizer import Tokenizer

__all__ = ["Target", "find_target"]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GGUF_EMBEDDING, GGUF_HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class Target:
    """A model and the work on it."""

    path: Path
    config: ModelConfig
    setup: Setup
    prompts: list[list[int]]
    """The first is for warming up."""
    parameters: int
    """Weights of the model; a tied embedding counts once."""
    weight_bytes: int
    """What one decode step reads in `setup.dtype`: every weight once, but of an untied embedding only some rows."""
    file_weight_bytes: int
    """The same in the file's own number formats."""


def find_target(
    model: str, engine: EngineSettings, progress: Progress, *, prompt_tokens: int, new_tokens: int, count: int
) -> Target:
    """Find (or fetch, or make up) a model, and make `count` prompts for it.

    Raises:
        BenchmarkError: the prompt and the new tokens do not fit into the model's context, or no CPU is asked for.
        QwillError: the model cannot be found, fetched or read.
    """
    if engine.device not in ("auto", "cpu"):
        raise BenchmarkError(f"benchmarks run on the CPU, not on {engine.device}", hint="leave device out")
    path = _path(model, engine, progress)
    config = load_config(path)
    context = engine.max_model_len or prompt_tokens + new_tokens
    if not prompt_tokens + new_tokens <= context <= config.max_position_embeddings:
        raise BenchmarkError(
            f"{prompt_tokens} prompt and {new_tokens} new tokens do not fit into the context",
            hint=f"the model's context holds {config.max_position_embeddings} tokens, max_model_len may lower it",
        )
    dtype = _dtype(engine, config)
    shapes = expected_tensors(config)
    unread = 0 if config.tie_word_embeddings else math.prod(shapes[EMBEDDING])
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return Target(
        path=path,
        config=config,
        setup=Setup(str(path), dtype, engine.threads or usable_cores(), context, engine.max_batch_tokens),
        prompts=make_prompts(Tokenizer.load(path), prompt_tokens, count),
        parameters=parameters,
        weight_bytes=(parameters - unread) * ITEM_BYTES[dtype],
        file_weight_bytes=_file_weight_bytes(path),
    )


def _dtype(engine: EngineSettings, config: ModelConfig) -> str:
    """As LLM decides on a CPU: the checkpoint's own, but float32 for float16, which overflows there."""
    if engine.dtype != "auto":
        return engine.dtype
    return "float32" if config.dtype == "float16" else config.dtype


def _path(model: str, engine: EngineSettings, progress: Progress) -> Path:
    if is_random(model):
        return random_model(model, progress)
    return resolve(
        model,
        source=engine.source,
        revision=engine.revision,
        endpoint=engine.endpoint,
        offline=engine.offline,
        progress=progress,
    ).path


def _file_weight_bytes(path: Path) -> int:
    with open_checkpoint(path) as checkpoint:
        tied = GGUF_HEAD not in checkpoint.tensors
        return sum(info.nbytes for info in checkpoint.tensors.values() if tied or info.name != GGUF_EMBEDDING)
