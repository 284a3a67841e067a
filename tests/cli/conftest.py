"""The command line with a stand-in for the engine: answers are scripted, so that each thing to be shown can be.

Run as a program, this file is `qwill` with that stand-in: `python conftest.py chat any-name`. So a test can start it
on a pseudo-terminal, press keys and look at the screen, in a fraction of a second and without torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwill.errors import ModelError
from qwill.outputs import CompletionOutput, Metrics, RequestOutput, StreamEvent
from qwill.sampling_params import SamplingParams
from qwill.settings import with_overrides

MARKDOWN = "# Title\n\nSome **bold** words.\n\n```python\nprint('你好')\n```\n\n- one\n- two\n"
HOSTILE = "red \x1b[31mtext\x1b[0m\x07 \x9b2J \x1b]0;title\x07 end"


class StandIn:
    """What the command line needs of `qwill.LLM`; the last message says what is answered."""

    name, dtype, device, threads, load_seconds = "stand-in", "float32", "cpu", 1, 0.0
    finish_reason: Any = "stop"

    def __init__(self, max_model_len: int = 1000, chat_template: str | None = "x") -> None:
        self.max_model_len = max_model_len
        self.tokenizer = SimpleNamespace(chat_template=chat_template)
        self.default_params = SamplingParams(temperature=0.5)
        self.calls: list[dict[str, Any]] = []
        self.closed_streams = 0

    def params(self, **overrides: Any) -> SamplingParams:
        return with_overrides(self.default_params, overrides)

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[StreamEvent]:
        self.calls.append({"prompt": prompt, "params": params})
        return self._events([("content", f"{prompt} and so on")])

    def stream_chat(self, messages: list[dict[str, Any]], params: SamplingParams, **chat: Any) -> Iterator[StreamEvent]:
        self.calls.append({"messages": messages, "params": params, **chat})
        return self._events(script(messages))

    def _events(self, pieces: Sequence[tuple[str, str]]) -> Iterator[StreamEvent]:
        text = {"thinking": "", "content": ""}
        ids: list[int] = []
        try:
            for kind, piece in pieces:
                if kind == "wait":
                    time.sleep(float(piece))
                    continue
                if kind == "ctrl-c":
                    raise KeyboardInterrupt
                if kind == "fail":
                    raise ModelError(piece)
                text[kind] += piece
                ids.append(len(ids))
                yield StreamEvent(kind, piece, (ids[-1],))
            done = CompletionOutput(0, text["content"], ids, finish_reason=self.finish_reason, content=text["content"])
            yield StreamEvent("done", output=RequestOutput("0", None, [1, 2], [done], Metrics(2, len(ids), 0.5, 1.0)))
        finally:
            self.closed_streams += 1

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def script(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The pieces of the answer to the last message."""
    last = messages[-1]["content"]
    if last == "slow":
        return [piece for number in range(400) for piece in (("content", f"word{number} "), ("wait", "0.02"))]
    if last == "never":
        return [("wait", "30")]
    if last == "think":
        return [("thinking", "secret "), ("thinking", "thoughts"), ("wait", "0.3"), ("content", "clear words")]
    if last == "fail":
        return [("content", "half "), ("fail", "the logits are not finite")]
    if last == "interrupt":
        return [("content", "half "), ("ctrl-c", "")]
    if last == "markdown":
        return [("content", character) for character in MARKDOWN]
    if last == "hostile":
        return [("content", character) for character in HOSTILE]
    return [("content", word + " ") for word in f"{len(messages)} messages, the last: {last}".split()]


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
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def make_stand_in() -> type[StandIn]:
    return StandIn


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
        program = ["-m", "qwill"] if engine == "real" else [__file__]
        return subprocess.run(
            [sys.executable, *program, *words],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **variables},
        )

    return run


def main() -> int:
    """`qwill` with the stand-in in place of the engine."""
    from qwill import cli
    from qwill.cli.commands import chat, run

    def load_model(_model: str, given: dict[str, Any]) -> StandIn:
        return StandIn(given.get("max_model_len", 1000), None if _model == "no-template" else "x")

    for module in (chat, run):
        module.load_model = load_model
    chat.count_prompt = lambda _llm, messages, _think: sum(len(m["content"].split()) for m in messages)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
