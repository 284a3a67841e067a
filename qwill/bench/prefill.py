"""Our own speed of computing prompts: from a prompt to its first new token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qwill.bench.alone import check_lengths, measure_alone
from qwill.bench.occasion import Occasion
from qwill.bench.results import Measurement
from qwill.hub.progress import Progress
from qwill.settings import EngineSettings, check_settings, setting

__all__ = ["PrefillSettings", "measure"]


@dataclass(frozen=True)
class PrefillSettings:
    """How much is measured. The model's own settings (dtype, threads, source …) are `EngineSettings`."""

    prompt_tokens: tuple[int, ...] = setting((512, 2048), "lengths of the prompts", unit="tokens")
    repeats: int = setting(3, "measured runs of each; the median counts", low=3, high=100)

    def __post_init__(self) -> None:
        check_settings(self)
        check_lengths(self.prompt_tokens)


def measure(
    model: str,
    settings: PrefillSettings | None = None,
    engine: EngineSettings | None = None,
    *,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Measurement:
    """Measure qwill on one model. `model` is any name that LLM takes, or `random:qwen3-0.6b`.

    Raises:
        BenchmarkError: the lengths do not fit into the model's context, or the process failed.
        QwillError: the model cannot be found or fetched.
    """
    settings, engine = settings or PrefillSettings(), engine or EngineSettings()
    work = dict.fromkeys(sorted(set(settings.prompt_tokens)), 1)
    occasion = Occasion.now("prefill", model, settings, engine)
    return measure_alone(occasion, engine, work, settings.repeats, progress=progress, command=command)
