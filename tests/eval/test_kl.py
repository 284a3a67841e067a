"""Two models over one text, against transformers' logits and losses of the same windows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from qwill.errors import ModelNotFoundError, SettingError, UsageError
from qwill.eval.kl import measure, windows
from qwill.eval.settings import KLSettings
from qwill.eval.texts import EvalText
from qwill.hub.progress import SilentProgress
from qwill.ops.backend import native_ops
from qwill.settings import EngineSettings

FLOAT32 = EngineSettings(dtype="float32", quant="none", threads=1)


def test_windows_hold_every_token_once_and_a_last_single_one_is_left_out() -> None:
    assert windows(range(10), 4) == [range(4), range(4, 8), range(8, 10)]
    assert windows(range(9), 4) == [range(4), range(4, 8)]
    assert windows(range(3), 512) == [range(3)]


def expected(baseline: Any, model: Any, token_ids: list[int], window: int) -> tuple[list[float], list[float], float]:
    """Divergences of all positions, agreements, and the model's perplexity, from transformers' models."""
    divergences, agreements, losses, counts = [], [], [], []
    for start in range(0, len(token_ids), window):
        ids = torch.tensor([token_ids[start : start + window]])
        if ids.shape[1] < 2:
            continue
        with torch.no_grad():
            logits = [side(ids).logits[0, :-1].double() for side in (baseline, model)]
            losses.append(model(ids, labels=ids).loss.item())
        log_p, log_q = (F.log_softmax(values, -1) for values in logits)
        divergences += F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1).tolist()
        agreements += (logits[0].argmax(-1) == logits[1].argmax(-1)).tolist()
        counts.append(ids.shape[1] - 1)
    return divergences, agreements, float(np.exp(np.average(losses, weights=counts)))


@pytest.mark.parametrize("window", [100, 17, 171, 170])
def test_all_numbers_are_those_of_transformers(
    tiny_chat_model: Path, other_chat_model: Path, hf_model: Callable[..., Any], text: EvalText, window: int
) -> None:
    settings = KLSettings(baseline=str(tiny_chat_model))
    found = measure(str(other_chat_model), text, settings, EngineSettings(**vars(FLOAT32) | {"max_model_len": window}))
    token_ids = Tokenizer.from_file(str(other_chat_model / "tokenizer.json")).encode(text.text).ids
    sides = hf_model(tiny_chat_model), hf_model(other_chat_model)
    divergences, agreements, perplexity = expected(*sides, token_ids, window)
    assert found.positions == len(divergences)
    assert found.divergence.mean == pytest.approx(np.mean(divergences), rel=1e-4)
    assert found.divergence.median == pytest.approx(np.median(divergences), rel=1e-3)
    assert found.divergence.maximum == pytest.approx(max(divergences), rel=1e-3)
    assert found.top1_agreement == pytest.approx(100 * np.mean(agreements))
    assert found.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert (found.text_tokens, found.window, found.interrupted) == (171, window, False)


def test_a_model_does_not_diverge_from_itself_and_its_size_is_told(tiny_chat_model: Path, text: EvalText) -> None:
    found = measure(str(tiny_chat_model), text, KLSettings(text_tokens=20), FLOAT32)
    assert found.divergence.maximum == 0.0
    assert found.top1_agreement == 100.0
    assert found.perplexity == found.baseline_perplexity
    assert (found.positions, found.window) == (19, 512)
    assert found.size == found.baseline_size
    assert found.size.bits_per_weight == pytest.approx(32, rel=0.01)  # kernels may want whole panels of rows


@pytest.mark.skipif(native_ops() is None, reason="quantizing needs the native kernels")
def test_fewer_bits_are_smaller_and_further_away(other_chat_model: Path, text: EvalText) -> None:
    found = [
        measure(str(other_chat_model), text, None, EngineSettings(quant=quant, dtype="float32", threads=1))
        for quant in ("none", "int8", "int4")
    ]
    assert 0 == found[0].divergence.mean < found[1].divergence.mean < found[2].divergence.mean
    assert found[0].size.nbytes > found[1].size.nbytes > found[2].size.nbytes
    assert {one.baseline_size.nbytes for one in found} == {found[0].size.nbytes}
    assert [one.settings["quant"] for one in found] == ["none", "int8", "int4"]


class Stopping(SilentProgress):
    """Ctrl-C at one of the steps of the evaluation."""

    def __init__(self, step: int) -> None:
        self.left = step

    def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
        """Remember whether this is the evaluation."""
        self.evaluates = label == "evaluate"

    def advance(self, count: int, item: str = "") -> None:
        """Count down."""
        self.left -= self.evaluates
        if self.left < 0:
            raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_measured(tiny_chat_model: Path, text: EvalText) -> None:
    engine = EngineSettings(dtype="bfloat16", threads=1)
    found = measure(str(tiny_chat_model), text, None, engine, progress=Stopping(1))
    assert found.interrupted
    assert found.positions == 128
    whole = measure(str(tiny_chat_model), text, KLSettings(text_tokens=129), engine)
    assert (whole.divergence, whole.perplexity) == (found.divergence, found.perplexity)


def test_ctrl_c_before_anything_was_measured_is_ctrl_c(
    tiny_chat_model: Path, text: EvalText, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AtOnce(Stopping):
        def start(self, total: int, label: str, resumed: int = 0, *, unit: str = "bytes") -> None:
            super().start(total, label, resumed, unit=unit)
            if self.evaluates:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(str(tiny_chat_model), text, None, FLOAT32, progress=AtOnce(0))


def test_a_text_of_one_token_is_refused(tiny_chat_model: Path) -> None:
    with pytest.raises(UsageError, match="single token"):
        measure(str(tiny_chat_model), EvalText("t", "0", "a"), None, FLOAT32)


@pytest.mark.parametrize(("window", "told"), [(1, "at least 2"), (5000, "4096")])
def test_a_window_that_cannot_be_is_refused(tiny_chat_model: Path, text: EvalText, window: int, told: str) -> None:
    with pytest.raises(SettingError) as caught:
        measure(str(tiny_chat_model), text, None, EngineSettings(max_model_len=window))
    assert told in str(caught.value)


def test_a_baseline_that_is_not_there_is_an_error(tiny_chat_model: Path, text: EvalText) -> None:
    with pytest.raises(ModelNotFoundError):
        measure(str(tiny_chat_model), text, KLSettings(baseline="./no-such-folder"), FLOAT32)


def test_a_baseline_with_another_vocabulary_is_refused(
    tiny_chat_model: Path, tiny_checkpoint: Callable[..., Path], tmp_path: Path, text: EvalText
) -> None:
    shutil.copytree(tiny_checkpoint("qwen3", vocab_size=300), tmp_path / "smaller")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_chat_model / name, tmp_path / "smaller" / name)
    with pytest.raises(UsageError, match=r"300 tokens .* 311") as caught:
        measure(str(tiny_chat_model), text, KLSettings(baseline=str(tmp_path / "smaller")), FLOAT32)
    assert caught.value.hint


def test_a_baseline_that_reads_the_text_as_other_tokens_is_refused(
    tiny_chat_model: Path, tmp_path: Path, text: EvalText
) -> None:
    shutil.copytree(tiny_chat_model, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["b"], vocabulary["o"] = vocabulary["o"], vocabulary["b"]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match="other tokens"):
        measure(str(tiny_chat_model), text, KLSettings(baseline=str(tmp_path / "model")), FLOAT32)
