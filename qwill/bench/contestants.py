"""What can be measured, each behind the same three calls: load, generate, logits.

A contestant lives in a process of its own (see worker.py) and does exactly what it is told: this prompt, so many new
tokens, greedy, end-of-text ignored. It notes the time at which each new token's id is known. Must not know what it
is compared with. Nothing heavy is imported before `load`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qwill.errors import BenchmarkError

__all__ = ["CONTESTANTS", "Contestant", "Generation", "Loaded", "Setup"]


@dataclass(frozen=True)
class Setup:
    """What every contestant is told before it loads. `dtype` is float32, bfloat16 or float16."""

    path: str
    """A folder with config.json, or a .gguf file."""
    dtype: str
    threads: int
    max_model_len: int
    """Longest prompt plus answer that will come."""
    max_batch_tokens: int = 512
    quant: str = "none"
    """What qwill makes of the weights: none, int8, int4, or auto; with a dtype of auto, as LLM chooses."""


@dataclass(frozen=True)
class Loaded:
    """What a contestant says of itself when it is ready; dtype and threads as they are, not as they were asked for."""

    seconds: float
    """Weights and tokenizer; imports are not in it."""
    dtype: str
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    weight_bytes: int | None = None
    """What one decode step reads, where the engine tells; None: the number of weights times the dtype's size."""


@dataclass(frozen=True)
class Generation:
    """New token ids, and for each the seconds from the call until its id was known.

    An engine that does not tell has two times only: of the first and of the last id.
    """

    token_ids: list[int]
    seconds: list[float]


class Contestant(Protocol):
    """One engine in one way of running it."""

    def load(self, setup: Setup) -> Loaded:
        """Load the model; called once, first."""

    def generate(self, prompt_token_ids: Sequence[int], new_tokens: int) -> Generation:
        """Continue a prompt by exactly so many tokens."""

    def logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float] | None:
        """Logits of the wanted ids after the last of `token_ids`; None where the engine does not tell."""


class Ours:
    """qwill, through its public API."""

    def __init__(self, *, use_cache: bool) -> None:
        self._use_cache = use_cache

    def load(self, setup: Setup) -> Loaded:
        """See `Contestant`."""

        from qwill.llm import LLM

        start = time.perf_counter()
        self._llm = LLM(
            setup.path,
            dtype=setup.dtype,
            quant=setup.quant,
            device="cpu",
            threads=setup.threads,
            max_model_len=setup.max_model_len,
            max_batch_tokens=setup.max_batch_tokens,
            prefix_cache=False,  # every run computes its whole prompt, whichever came before
        )
        seconds = time.perf_counter() - start
        return Loaded(seconds, self._llm.dtype, self._llm.threads, _versions("torch"), self._llm.decode_bytes)

    def generate(self, prompt_token_ids: Sequence[int], new_tokens: int) -> Generation:
        """See `Contestant`."""
        from qwill.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        done = Generation([], [])
        start = time.perf_counter()
        for event in self._llm.stream(list(prompt_token_ids), params, use_cache=self._use_cache):
            for token_id in event.token_ids:
                done.token_ids.append(token_id)
                done.seconds.append(time.perf_counter() - start)
        return done

    def logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float] | None:
        """See `Contestant`."""
        row = self._llm.logits(token_ids)
        return [float(row[i]) for i in wanted]


class Transformers:
    """transformers' generate(), greedy, with SDPA attention, from the same file."""

    def __init__(self, *, use_cache: bool) -> None:
        self._use_cache = use_cache

    def load(self, setup: Setup) -> Loaded:
        """See `Contestant`."""
        import torch

        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(setup.threads)
        path = Path(setup.path)
        gguf = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self._configuration: Any = transformers.GenerationConfig
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **gguf)
        _ = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]  # imports the model's code, which is not loading
        start = time.perf_counter()
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, setup.dtype), attn_implementation="sdpa", local_files_only=True, **gguf
        ).eval()
        transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **gguf)
        seconds = time.perf_counter() - start
        dtype = str(self._model.dtype).removeprefix("torch.")
        return Loaded(seconds, dtype, torch.get_num_threads(), _versions("torch", "transformers"))

    def generate(self, prompt_token_ids: Sequence[int], new_tokens: int) -> Generation:
        """See `Contestant`."""
        import torch

        # A fresh configuration: the model's own may sample, or penalize repetition even in greedy search.
        plan = self._configuration(
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            use_cache=self._use_cache,
            eos_token_id=None,
            pad_token_id=0,
        )
        self._model.generation_config = plan
        clock = _Clock()
        start = time.perf_counter()
        prompt = torch.tensor([prompt_token_ids])
        with torch.inference_mode():
            ids = self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=plan, stopping_criteria=[clock]
            )
        return Generation(ids[0, prompt.shape[1] :].tolist(), [moment - start for moment in clock.moments])

    def logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float] | None:
        """See `Contestant`."""
        import torch

        with torch.inference_mode():
            row = self._model(torch.tensor([token_ids]), logits_to_keep=1).logits[0, -1]
        return [float(row[i]) for i in wanted]


class _Clock:
    """A stopping criterion of transformers that never stops, and notes when it was asked: once per new token."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, input_ids: Any, _scores: Any, **_: Any) -> Any:
        import torch

        self.moments.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


class LlamaCpp:
    """llama.cpp through xllamacpp's in-process server. Runs a GGUF file in its own number formats."""

    def load(self, setup: Setup) -> Loaded:
        """See `Contestant`."""
        xllamacpp: Any = importlib.import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = setup.path
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup.threads
        given = {
            "n_ctx": setup.max_model_len + 8,
            "n_parallel": 1,
            "n_batch": 2048,
            "n_ubatch": 512,
            "warmup": False,
            "cache_prompt": False,
            "cache_ram_mib": 0,
            "endpoint_metrics": False,
            "verbosity": 0,
        }
        for name, value in given.items():
            setattr(params, name, value)
        start = time.perf_counter()
        self._server: Any = xllamacpp.Server(params)
        seconds = time.perf_counter() - start
        return Loaded(seconds, "GGUF", params.cpuparams.n_threads, _versions("xllamacpp"))

    def generate(self, prompt_token_ids: Sequence[int], new_tokens: int) -> Generation:
        """See `Contestant`."""
        answers: list[dict[str, Any]] = []
        request = {
            "prompt": list(prompt_token_ids),
            "n_predict": new_tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "verbose": True,  # the ids are only in the verbose part
        }
        start = time.perf_counter()
        self._server.handle_completions(request, answers.append)
        end = time.perf_counter() - start
        if not answers or "timings" not in answers[-1]:
            raise BenchmarkError(f"llama.cpp gave no answer: {answers[-1:]!r:.300}")
        # The server's clock for generating starts when the first token is known.
        first = end - answers[-1]["timings"]["predicted_ms"] / 1e3
        return Generation(answers[-1]["__verbose"]["tokens"], [first, end])

    def logits(self, token_ids: Sequence[int], wanted: Sequence[int]) -> list[float] | None:  # noqa: ARG002
        """The server does not tell."""
        return None


def _versions(*packages: str) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in packages}


CONTESTANTS: dict[str, Any] = {
    "qwill-no-cache": lambda: Ours(use_cache=False),
    "qwill": lambda: Ours(use_cache=True),
    "transformers-no-cache": lambda: Transformers(use_cache=False),
    "transformers": lambda: Transformers(use_cache=True),
    "llamacpp": LlamaCpp,
}
"""Name -> a function that makes the contestant."""
