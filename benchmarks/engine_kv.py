"""What keys and values in fewer bits cost: KL divergence from keys and values in fp32, everything else being fp32.

The same weights serve both sides; only the cache differs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_work import Finding, Work
from qwill.batch import KVCache
from qwill.eval.kl import compare, windows
from qwill.eval.quality import summarize
from qwill.eval.texts import read_text
from qwill.hub.progress import SilentProgress
from qwill.loader import LoadedModel, load
from qwill.settings import EngineSettings

__all__ = ["kv_divergence"]

DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16}


def kv_divergence(work: Work, model: str, texts: dict[str, Path]) -> list[Finding]:
    """The mean KL in nats of one model, for each number format and text; nothing is asked of it."""
    exact = EngineSettings(
        quant="none", dtype="float32", kv_dtype="float32", threads=work.threads, max_model_len=work.window
    )
    progress = SilentProgress()
    baseline = load(model, exact, progress)
    findings = []
    for name, path in texts.items():
        text = read_text(path)
        cut = windows(baseline.tokenizer.encode(text.text)[: work.text_tokens], work.window)
        for dtype in DTYPES:
            scores, _ = compare(baseline, with_cache_of(baseline, dtype), cut, progress)
            summary: dict[str, Any] = summarize(scores)
            divergence = summary.pop("divergence")
            details = {"text_sha256": text.sha256, "window": work.window, **asdict(divergence), **summary}
            findings.append(
                Finding(
                    f"KL of {dtype} keys and values, {baseline.local.path.stem}, {name}",
                    divergence.mean,
                    details=details,
                )
            )
    return findings


def with_cache_of(loaded: LoadedModel, dtype: str) -> LoadedModel:
    """The same model with a cache of its own, in another number format."""
    shape: Any = tuple(loaded.kv_cache.keys.shape)
    return replace(loaded, kv_cache=KVCache.empty(shape, dtype=DTYPES[dtype], device=loaded.device))
