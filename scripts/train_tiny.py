"""Train the tiny Qwen3 that lies inside the package, and write it as qwill/tiny/tiny.gguf.

    scripts/train_tiny.py FOLDER               train; a run goes on from the checkpoint in FOLDER, if there is one
    scripts/train_tiny.py FOLDER --steps N     shorter or longer than what was decided below
    scripts/train_tiny.py FOLDER --threads N   torch's threads; 2 by default
    scripts/train_tiny.py FOLDER --out FILE    another file

The texts are fetched if they are not here (`tiny_corpus`). The seed fixes the weights at the start and the order of
what is shown; so on one machine, with one version of torch and one number of threads, a run gives the same file again,
also one that was broken off and went on. Elsewhere sums are taken in another order: the losses come out much alike, the
weights do not. The sha256 that is printed at the end belongs into qwill/hub/catalog.py.

A toy: it writes in the style of its texts and knows nothing. qwill/tiny/README.md says more.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from qwill.bench.machine import machine_facts
from qwill.bench.results import write_record
from scripts.tiny_corpus import Document, documents
from scripts.tiny_examples import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    NOT_LEARNED,
    SPECIAL_TOKENS,
    Examples,
    held_out,
    train_tokenizer,
)
from scripts.tiny_gguf import About, write_gguf

TARGET = Path(__file__).resolve().parent.parent / "qwill" / "tiny" / "tiny.gguf"
ABOUT = About(
    name="qwill tiny",
    description="A toy: a small Qwen3 trained on Shakespeare, the King James Bible and Chinese poems",
    chat_template=CHAT_TEMPLATE,
    special_tokens=SPECIAL_TOKENS,
    end_of_turn=IM_END,
    end_of_text=END_OF_TEXT,
)


@dataclass(frozen=True)
class Recipe:
    """The shape of the model, and how it is trained. Lengths in tokens."""

    vocab_size: int = 2048
    hidden: int = 192
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 512
    context: int = 512
    seed: int = 20261130
    steps: int = 3500
    batch_tokens: int = 1024
    length: int = 256
    """Of most windows; the last `long_share` of the steps have windows of the whole context."""
    long_share: float = 0.15
    chats: float = 0.4
    learning_rate: float = 3e-3
    warmup: int = 100
    cooling: float = 0.4
    weight_decay: float = 0.1
    save_every: int = 200


def main(arguments: list[str]) -> int:
    """See the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=TARGET)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    asked.folder.mkdir(parents=True, exist_ok=True)
    recipe = replace(Recipe(), steps=asked.steps)
    print(f"train_tiny: {recipe}", flush=True)
    train(documents(), recipe, asked.folder, asked.out)
    return 0


def train(texts: Sequence[Document], recipe: Recipe, folder: Path, out: Path) -> float:
    """Train on `texts` from where the checkpoint in `folder` stands, and write `out`, and losses.json into the folder.

    Returns the loss on the texts held out, in nats a token.
    """
    learned, kept = held_out(texts)
    tokenizer = _tokenizer(learned, recipe, folder)
    run = _Run(recipe, folder)
    run.resume()
    shown = Examples(learned, tokenizer, recipe.seed, recipe.chats)
    test = Examples(kept, tokenizer, recipe.seed, recipe.chats)
    start, first = time.monotonic(), run.step
    while run.step < recipe.steps:
        loss = run.learn(shown)
        if run.step % 20 == 0 or run.step == recipe.steps:
            speed = (run.step - first) * recipe.batch_tokens / (time.monotonic() - start)
            print(f"step {run.step}/{recipe.steps}  loss {loss:.3f}  {speed:.0f} tokens/s", flush=True)
        if run.step % recipe.save_every == 0 or run.step == recipe.steps:
            run.save()
            print(f"step {run.step}  loss on held-out texts {run.test(test):.3f}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(out, run.model, tokenizer, ABOUT)
    loss = run.test(test, windows=64)
    plain = {}
    for kind in sorted({document.kind for document in kept}):
        some = Examples([d for d in kept if d.kind == kind], tokenizer, recipe.seed, chats=0.0)
        plain[kind] = run.test(some, windows=32)
        print(f"  {kind}: loss on held-out text, without chats, {plain[kind]:.3f}", flush=True)
    sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
    write_record(
        {
            "benchmark": "train_tiny",
            "machine": machine_facts(),
            "recipe": asdict(recipe),
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "sha256": sha256,
            "bytes": out.stat().st_size,
            "loss_held_out": loss,
            "loss_held_out_without_chats": plain,
            "loss_of_guessing": math.log(recipe.vocab_size),
        },
        folder / "losses.json",
    )
    print(f"{out}: {out.stat().st_size} bytes, sha256 {sha256}; loss on held-out texts {loss:.3f}", flush=True)
    return loss


def _tokenizer(learned: Sequence[Document], recipe: Recipe, folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        train_tokenizer(learned, recipe.vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


class _Run:
    """A model, its optimizer, and the number of steps done; kept in a folder as safetensors."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.folder = folder
        self.step = 0
        self.model: Any = Qwen3ForCausalLM(config_of(recipe))
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))

    def learn(self, shown: Examples) -> float:
        """One step on the windows of its number. Returns the loss before it."""
        recipe = self.recipe
        long = self.step >= recipe.steps * (1 - recipe.long_share)
        length = recipe.context if long else recipe.length
        loss = self._loss(shown, self.step, recipe.batch_tokens // length, length)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def test(self, test: Examples, windows: int = 16) -> float:
        """Mean loss on windows of texts that were never learned from; the same windows each time."""
        losses = [self._loss(test, -1 - number, 4, self.recipe.length) for number in range(windows // 4)]
        return float(torch.stack(losses).mean())

    def _loss(self, examples: Examples, step: int, count: int, length: int) -> torch.Tensor:
        inputs, labels = map(torch.from_numpy, examples.windows(step, count, length))
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=NOT_LEARNED)

    def save(self) -> None:
        """Write weights, the optimizer's moments and the step; a kill in between leaves the last ones."""
        moments = {
            f"{number}.{name}": value
            for number, state in self.optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        weights = {name: value for name, value in self.model.state_dict().items() if name != "lm_head.weight"}
        tensors = {f"model/{k}": v for k, v in weights.items()} | {f"optimizer/{k}": v for k, v in moments.items()}
        partial = self.folder / "checkpoint.partial"
        save_file(tensors, partial)
        partial.rename(self.folder / "checkpoint.safetensors")

    def resume(self) -> None:
        """Go on from the checkpoint in the folder, if there is one."""
        path = self.folder / "checkpoint.safetensors"
        if not path.is_file():
            return
        tensors = load_file(path)
        weights = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        self.model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                number, name = key.removeprefix("optimizer/").split(".")
                state.setdefault(int(number), {})[name] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})
        self.step = int(state[0]["step"])


def config_of(recipe: Recipe) -> Qwen3Config:
    """The shape as `transformers` states it."""
    return Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """A straight line up, then level, then half a cosine down to a hundredth in the last `cooling` of the steps.

    Level in the middle, so that a run can be made longer or shorter from a checkpoint, and be as if planned so.
    """
    start = recipe.steps * (1 - recipe.cooling)
    done = max(step - start, 0) / (recipe.steps - start)
    falling = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))
    return recipe.learning_rate * min((step + 1) / recipe.warmup, falling)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
