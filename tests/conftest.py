"""What tests of every folder share: real weights, found in the cache outside this folder or fetched into it; a browser.

A test that asks for weights or a browser which cannot be had is skipped, and the end of the run says so loudly; where
CI=true it fails. `scripts/weights.py` does the fetching, one process at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = dict(os.environ)
"""As it was when the run began; a test may have changed QWILL_HOME or the proxies by the time weights are asked for."""
MISSING = "real weights missing: "
NO_BROWSER = "no browser: "
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# A run that was started in the background, or by nohup, ignores these, and so would every process that a test starts
# in order to interrupt it. One that is handled here is back at its default there.
for _name in ("SIGINT", "SIGHUP"):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), signal.default_int_handler)


def real_weights(name: str) -> Path:
    """The path of one of the things that scripts/weights.py knows; skips or fails the test without it."""
    command = [sys.executable, "-m", "scripts.weights", name]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return Path(result.stdout.splitlines()[-1])
    assert result.returncode == 3, result.stderr
    return not_proved(f"{MISSING}{name}: {' '.join(result.stderr.split())[-300:]}")


def not_proved(reason: str) -> NoReturn:
    """Skip the test, or fail it where everything must be proved."""
    if ENVIRONMENT.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program of a Chromium that is installed on this machine; skips or fails the test without one."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    return found or not_proved(f"{NO_BROWSER}none of {', '.join(CHROMIUM)} is installed")


@pytest.fixture(scope="session")
def qwen_coder_gguf() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, GGUF Q4_K_M: Chinese, English and code; architecture qwen2."""
    return real_weights("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, GGUF Q4_1: the small, quick one; architecture llama."""
    return real_weights("smollm2-135m")


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir() -> Path:
    """A folder with the real tokenizer.json and tokenizer_config.json (with the chat template) of Qwen3."""
    return real_weights("qwen3-tokenizer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real weights first: one worker loads each model once, and the long tests do not come last."""
    items.sort(key=lambda item: item.get_closest_marker("weights") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not proved because weights or a browser were missing."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    for prefix, title in ((MISSING, "REAL WEIGHTS MISSING"), (NO_BROWSER, "NO BROWSER")):
        missing = Counter(reason.split(prefix, 1)[1] for reason in reasons if prefix in reason)
        if missing:
            terminalreporter.section(title, sep="=", red=True, bold=True)
        for reason, count in missing.items():
            terminalreporter.line(f"{count} tests were skipped. {reason}", red=True)


TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-untied": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen3-odd-heads": ("Qwen3", {"num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 6}),
    "qwen3-one-kv-head": ("Qwen3", {"num_attention_heads": 7, "num_key_value_heads": 1}),
    "qwen3-eps": ("Qwen3", {"rms_norm_eps": 1e-5}),
    "qwen3-biases": ("Qwen3", {"attention_bias": True}),
    "qwen3-yarn": (
        "Qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {"tie_word_embeddings": False}),
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama3-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
}
"""Name -> family and what differs from `TINY_BASE`. Sizes are small, odd and unlike each other on purpose."""

TINY_BASE: dict[str, Any] = {
    "vocab_size": 311,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_checkpoint(name, **config) -> folder of a random model, as `transformers` itself saves it."""
    made: dict[str, Path] = {}

    def make(name: str = "qwen3", **config: Any) -> Path:
        key = f"{name} {sorted(config.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp(name)
            _save_tiny(name, config, made[key])
        return made[key]

    return make


def _save_tiny(name: str, config: dict[str, Any], folder: Path) -> None:
    import torch
    import transformers

    family, differs = TINY[name]
    values = {**TINY_BASE, **differs, **config}
    if family == "Qwen2":
        del values["head_dim"]  # Qwen2 has no such field: it is hidden_size / heads
    torch.manual_seed(0)
    model_class = getattr(transformers, f"{family}ForCausalLM")
    model = model_class(getattr(transformers, f"{family}Config")(**values))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that leaving one out shows
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def hf_model() -> Callable[..., Any]:
    """hf_model(folder, dtype) -> the same checkpoint in `transformers`, the oracle."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    return load


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is true %}<think>\n{% endif %}{% endif %}"
)
TINY_SPECIAL = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<think>": False, "</think>": False}


@pytest.fixture(scope="session")
def tiny_chat_model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a tokenizer of single bytes and a ChatML template: everything `LLM` needs, in 400 kB.

    The last 50 ids of its vocabulary have no token, as in the real ones.
    """
    import json
    import shutil

    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("chat") / "tiny-chat"
    shutil.copytree(tiny_checkpoint("qwen3"), folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for text, special in TINY_SPECIAL.items():
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = [256, 258]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "temperature": 0.6, "top_k": 20}))
    return folder


@pytest.fixture(scope="session")
def chat_folder(
    tiny_checkpoint: Callable[..., Path], tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """chat_folder(name): any of the tiny models, with the tokenizer of the chat model."""
    import shutil

    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("with-tokenizer") / name
            shutil.copytree(tiny_checkpoint(name), made[name])
            for file in tiny_chat_model.glob("*token*.json"):
                shutil.copy(file, made[name])
        return made[name]

    return make


MERGED = ["ab", '":', "true", "12", "}}", " a", "yes"]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A tokenizer as GGUF files have it: 256 single bytes, a few longer tokens, two ids without one, control tokens."""
    import numpy as np
    from tokenizers import pre_tokenizers

    from qwill.gguf_vocab import read_gguf_vocab
    from qwill.tokenizer import Tokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [text.replace(" ", "Ġ") for text in MERGED]
    steps = sorted(
        {text[:end] for text in merged for end in range(2, len(text) + 1)}, key=lambda step: (len(step), step)
    )
    special = ["<|endoftext|>", "<|im_end|>", "<tool_call>", "<think>", "</think>"]
    tokens = [*letters, *steps, "[UNUSED0]", "[UNUSED1]", *special]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (256 + len(steps)) + [5, 5, 3, 3, 4, 4, 4]),
        "tokenizer.ggml.merges": [f"{step[:-1]} {step[-1]}" for step in steps],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    return Tokenizer(read_gguf_vocab(metadata, "tiny.gguf"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Qwen3 with 512 tokens and 2 layers, as the benchmarks write it."""
    from qwill.bench.random_model import write_random_model

    folder = tmp_path_factory.mktemp("random") / "qwen3-tiny"
    write_random_model(folder, "qwen3-tiny")
    return folder
