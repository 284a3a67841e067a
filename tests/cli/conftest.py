"""The command line with a stand-in for the engine, with a small real model, and with nothing of the user's around."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STAND_IN = Path(__file__).with_name("stand_in.py")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real model of two small layers and random weights, whose tokens are bytes."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from qwill.checkpoint_names import expected_tensors
    from qwill.config import config_from_json

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    random = np.random.default_rng(0)
    shapes = expected_tensors(config_from_json(folder))
    tensors = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<|im_end|>", "chat_template": CHATML, "tokenizer_class": "Qwen2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def make_stand_in() -> Any:
    """The class of the stand-in."""
    spec = importlib.util.spec_from_file_location("stand_in", STAND_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StandIn


@pytest.fixture
def stand_in(make_stand_in: Any) -> Any:
    """An engine whose answers are scripted."""
    return make_stand_in()


@pytest.fixture
def stand_in_program(home: Path) -> list[str]:
    """The command that runs `qwill` with the stand-in; to be followed by the words of a command line."""
    return [sys.executable, str(STAND_IN)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder, and no variable of ours or of the hubs."""
    for variable in list(os.environ):
        if variable.startswith(("QWILL_", "XDG_", "HF_")) or variable in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stored_model(home: Path, tiny_model: Path) -> Path:
    """The small model as `acme/tiny` in the Hugging Face cache, in the layout of huggingface_hub."""
    repository, commit = home / "hf/hub/models--acme--tiny", "a" * 40
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "refs", repository / "blobs"):
        folder.mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    for file in tiny_model.iterdir():
        blob = repository / "blobs" / f"blob-{file.name}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.fixture
def qwill(home: Path) -> Any:
    """Run `qwill WORDS…` in a process of its own, by default without the stand-in; gives the finished process."""

    def run(*words: str, stdin: str | bytes = "", engine: str = "real", **variables: str) -> Any:
        program = ["-m", "qwill"] if engine == "real" else [str(STAND_IN)]
        return subprocess.run(
            [sys.executable, *program, *words],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **variables},
        )

    return run
