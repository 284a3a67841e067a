"""Two models over one text: the model as it would run, and a baseline with unquantized fp32 weights.

The text's tokens are cut into windows. Within a window both models compute the same tokens, some at a time, through the
KV cache as in serving, so that only the logits of one step are ever held. Every token but a window's first is
predicted, and counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qwill import __version__
from qwill.batch import Batch, NewTokens
from qwill.errors import SettingError, UsageError
from qwill.eval.quality import Quality, model_size, summarize
from qwill.eval.scores import Scores, score
from qwill.eval.settings import KLSettings
from qwill.eval.texts import EvalText
from qwill.hub.progress import Progress, SilentProgress
from qwill.loader import LoadedModel, load
from qwill.settings import EngineSettings

__all__ = ["compare", "measure", "window_logits", "windows"]

WINDOW = 512
STEP = 64
"""Tokens computed at a time: logits of 150,000 entries each are large."""


def measure(
    model: str,
    text: EvalText,
    settings: KLSettings | None = None,
    engine: EngineSettings | None = None,
    *,
    progress: Progress | None = None,
) -> Quality:
    """Compare a model with its baseline on a text. `engine.max_model_len` is the window; 512 where that is left open.

    Ctrl-C ends it early with what was measured so far, or as always where that is nothing.

    Raises:
        UsageError: the text is a single token, or the models do not read it as the same tokens.
        ModelError: a model computed logits that are not finite.
        QwillError: a model cannot be found, fetched or loaded.
    """
    settings, engine = settings or KLSettings(), engine or EngineSettings()
    progress = progress or SilentProgress()
    window = WINDOW if engine.max_model_len is None else engine.max_model_len
    if window < 2:
        raise SettingError(f"max_model_len = {window}: its only token is not predicted", hint="allowed: at least 2")
    tested = load(model, replace(engine, max_model_len=window), progress)
    token_ids = _token_ids(tested, text, settings)
    baseline = load(settings.baseline or model, _of_baseline(settings, engine, window), progress)
    _check_same_tokens(tested, baseline, token_ids, text)
    scores, interrupted = compare(baseline, tested, windows(token_ids, window), progress)
    return Quality(
        model=model,
        baseline=settings.baseline or model,
        settings={"quant": engine.quant, "dtype": engine.dtype, "kv_dtype": engine.kv_dtype, "threads": tested.threads},
        size=model_size(tested.model),
        baseline_size=model_size(baseline.model),
        text=text.name,
        text_sha256=text.sha256,
        text_tokens=len(token_ids),
        window=window,
        interrupted=interrupted,
        versions={"qwill": __version__, "torch": torch.__version__},
        **summarize(scores),
    )


def compare(
    baseline: LoadedModel, tested: LoadedModel, cut: Sequence[Sequence[int]], progress: Progress
) -> tuple[list[Scores], bool]:
    """The scores of all steps of all windows, and whether Ctrl-C came before the last one.

    Raises:
        ModelError: a model computed logits that are not finite.
        KeyboardInterrupt: before anything was measured.
    """
    found: list[Scores] = []
    count, total = 0, 0.0
    progress.start(sum(len(window) - 1 for window in cut), "evaluate", unit="tokens")
    try:
        for window in cut:
            for one in _window_scores(baseline, tested, window):
                found.append(one)
                count, total = count + len(one.divergence), total + one.divergence.sum().item()
                progress.advance(len(one.divergence), f"KL {total / count:.4g}")
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    finally:
        progress.finish()
    return found, False


def windows(token_ids: Sequence[int], size: int) -> list[Sequence[int]]:
    """The tokens cut into windows of `size`, the last one shorter; a single token predicts nothing and is left out."""
    cut = (token_ids[start : start + size] for start in range(0, len(token_ids), size))
    return [window for window in cut if len(window) > 1]


def _of_baseline(settings: KLSettings, engine: EngineSettings, window: int) -> EngineSettings:
    """A baseline of another name has revisions of its own, so that the model's is not asked for there."""
    revision = None if settings.baseline else engine.revision
    return replace(engine, quant="none", dtype="float32", kv_dtype="float32", revision=revision, max_model_len=window)


def _token_ids(tested: LoadedModel, text: EvalText, settings: KLSettings) -> list[int]:
    token_ids = tested.tokenizer.encode(text.text)[: settings.text_tokens]
    if len(token_ids) < 2:
        raise UsageError("the text is a single token: there is nothing to predict", where=text.name)
    return token_ids


def _check_same_tokens(tested: LoadedModel, baseline: LoadedModel, token_ids: list[int], text: EvalText) -> None:
    """Refuse two models whose predictions are about different things."""
    sizes = baseline.config.vocab_size, tested.config.vocab_size
    if sizes[0] != sizes[1]:
        problem = f"the baseline has {sizes[0]} tokens in its vocabulary and the model {sizes[1]}"
    elif baseline.tokenizer.encode(text.text)[: len(token_ids)] != token_ids:
        problem = "the baseline reads the text as other tokens than the model"
    else:
        return
    raise UsageError(problem, where=str(baseline.local.path), hint="the baseline must be the same model, unquantized")


def window_logits(side: LoadedModel, window: Sequence[int]) -> Iterator[Tensor]:
    """A model's logits (N, V) in fp32 of the tokens of a window, in order, N at a time.

    The last token predicts nothing that is in the window, and is not computed.
    """
    cache = side.kv_cache
    for start in range(0, len(window) - 1, STEP):
        end = min(start + STEP, len(window) - 1)
        blocks = range(-(-end // cache.block_size))
        new = NewTokens(start, end - start, blocks, num_logits=end - start)
        token_ids = torch.tensor(window[start:end], dtype=torch.int64, device=side.device)
        logits: Tensor = side.model(token_ids, Batch.build([new], cache, side.device))
        yield logits.float()


def _window_scores(baseline: LoadedModel, tested: LoadedModel, window: Sequence[int]) -> Iterator[Scores]:
    """The scores of one window, step by step."""
    targets = torch.split(torch.tensor(window[1:], device=tested.device), STEP)
    sides = window_logits(baseline, window), window_logits(tested, window)
    yield from map(score, *sides, targets)
