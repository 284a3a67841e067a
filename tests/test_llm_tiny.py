"""The trained model inside the package: a real Qwen3, whole, learned, and usable with no network.

The oracle is `transformers` on the same GGUF file, in fp32. What the model writes is chance and is not tested; that it
predicts text, attends, thinks when asked to and stops is not.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qwill import LLM, SamplingParams
from qwill.batch import Batch, NewTokens
from qwill.config import ModelConfig, load_config
from qwill.formats import open_checkpoint
from qwill.hub import resolve
from qwill.ops import native_ops
from qwill.tokenizer import Tokenizer
from qwill.weights import load_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
PROMPTS = ["To be, or not to be", "And it came to pass in those days, that", "《春晓》\n孟浩然\n", "HAMLET.\n"]
QUESTIONS = ["Now is the winter of our discontent", "And God said,", "床前明月光，"]
# In the manner of the Bible, and in none of the texts it learned from.
UNSEEN = "The king arose in the morning, and went forth with all his people unto the house of the Lord."


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve("tiny", offline=True).path


@pytest.fixture(scope="module")
def config(path: Path) -> ModelConfig:
    return load_config(path)


@pytest.fixture(scope="module")
def oracle(path: Path, config: ModelConfig) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    # transformers takes every Qwen3 in a GGUF file to have heads of 128, so that is given to it; the rest it reads.
    shape = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    shape.head_dim = config.head_dim
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, config=shape, dtype=torch.float32
    )


@pytest.fixture(scope="module")
def exact() -> Iterator[LLM]:
    with LLM("tiny", dtype="float32", offline=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def usual() -> Iterator[LLM]:
    with LLM("tiny", offline=True) as llm:
        yield llm


def test_it_is_small_and_has_what_a_qwen3_has(path: Path, config: ModelConfig) -> None:
    assert path.stat().st_size <= 4_000_000
    assert config.qk_norm
    assert 1 < config.num_kv_heads < config.num_heads
    assert config.num_layers > 1
    assert config.tie_word_embeddings
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.metadata["general.architecture"] == "qwen3"


def our_logits(path: Path, config: ModelConfig, ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary) of one prompt, in fp32."""
    with open_checkpoint(path) as checkpoint:
        model = load_model(checkpoint, config, dtype=torch.float32, device=torch.device("cpu"))
    batch = Batch.build([NewTokens(0, len(ids), num_logits=len(ids))], None, torch.device("cpu"))
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor(ids), batch)
    return logits


def test_logits_equal_transformers(path: Path, config: ModelConfig, oracle: Any) -> None:
    ids = Tokenizer.load(path).encode(UNSEEN + "\n" + "\n".join(PROMPTS))
    with torch.no_grad():
        wanted = oracle(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(our_logits(path, config, ids), wanted, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_equal_transformers(exact: LLM, oracle: Any) -> None:
    """Fed our prompt and answer, it must itself prefer each of our tokens at its place."""
    for output in exact.generate(PROMPTS, GREEDY):
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        assert len(answer) == 64
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        assert answer == logits.argmax(-1).tolist()


def test_it_predicts_what_it_never_saw(path: Path, config: ModelConfig) -> None:
    """Guessing among its 2048 tokens would cost ln 2048 = 7.6 nats a token."""
    ids = Tokenizer.load(path).encode(UNSEEN)
    logits = our_logits(path, config, ids)
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert loss < 4.0 < math.log(config.vocab_size) - 3


def test_its_heads_learned_to_look_somewhere(path: Path, oracle: Any) -> None:
    """Some head gives most of its weight to few tokens, and not every head looks at the same ones."""
    ids = Tokenizer.load(path).encode(UNSEEN)
    oracle.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(oracle(torch.tensor([ids]), output_attentions=True).attentions)[:, 0]
    last = maps[:, :, -1]  # what the last token looks at: (layers, heads, tokens)
    entropy = -(last * last.clamp_min(1e-30).log()).sum(-1)
    assert entropy.min() < 0.5 * math.log(len(ids))
    assert len(set(last.argmax(-1).flatten().tolist())) > 3


@pytest.mark.parametrize("thinking", [True, False])
def test_a_chat_thinks_when_asked_to_and_ends(usual: LLM, thinking: bool) -> None:
    """As a rule: what is drawn differs with the machine, and a toy now and then runs on."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS for _ in range(6)]
    params = [
        SamplingParams(temperature=0.7, top_p=0.8, top_k=20, max_tokens=350, seed=seed) for seed in range(len(chats))
    ]
    answers = [output.outputs[0] for output in usual.chat(chats, params, enable_thinking=None if thinking else False)]
    good = [
        answer
        for answer in answers
        if answer.finish_reason == "stop"
        and answer.text.startswith("<think>\n") == thinking
        and answer.text.count("</think>") == int(thinking)
        and answer.text.split("</think>")[-1].strip()
    ]
    assert len(good) >= len(answers) - 4


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_the_command_runs_with_no_network_and_no_home(ops: str, tmp_path: Path) -> None:
    if ops == "native" and native_ops() is None:
        pytest.skip("the native ops are not built")
    tmp_path.chmod(0o500)
    environment = {"HF_HUB_OFFLINE": "1", "QWILL_OPS": ops, "OMP_NUM_THREADS": "1"}
    environment |= {"HOME": str(tmp_path), "QWILL_HOME": str(tmp_path / "none"), "HF_HOME": str(tmp_path / "none")}
    command = [sys.executable, "-m", "qwill", "run", "tiny", "To be", "--no-think", "--max-tokens", "40", "--quiet"]
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run(
        command, env=os.environ | environment, cwd=root, capture_output=True, text=True, check=False, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert not list(tmp_path.iterdir())
