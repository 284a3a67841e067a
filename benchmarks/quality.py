"""What each way to quantize costs: qwill's int8 and int4, and llama.cpp's Q8_0, Q4_0 and Q4_K_M, of the same weights.

    python benchmarks/quality.py --tools FOLDER --output benchmarks/results/quality.json

The unquantized weights are real GGUF files, dequantized, with their channels shuffled (scripts/whole_gguf.py says why).
llama.cpp's own llama-quantize, from FOLDER, makes its files of them. Every way is then held against the unquantized
fp32 model twice with our engine: with the quantized weights alone, everything else in fp32, and as it really runs,
where activations are 8 bits too. Where FOLDER also has llama-perplexity, llama.cpp judges its own files as well: by
itself, on the second half of each window. A result that is in the output already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwill.batch import KVCache
from qwill.bench.machine import machine_facts
from qwill.bench.results import write_record
from qwill.eval.kl import window_logits, windows
from qwill.eval.quality import model_size, summarize
from qwill.eval.scores import score
from qwill.eval.texts import EvalText, read_text
from qwill.formats import open_checkpoint
from qwill.hub import resolve
from qwill.hub.progress import SilentProgress
from qwill.hub.storage import cache_root
from qwill.loader import LoadedModel, load
from qwill.models.layers import Embedding, Linear
from qwill.quantization import PackedWeight, pack_dense
from qwill.settings import EngineSettings
from qwill.system import usable_cores

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
OURS = ("int8", "int4")
LLAMA_CPP = ("Q8_0", "Q4_K_M", "Q4_0")
TEXTS = ("english", "chinese")
WINDOW = 512

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to quantize: whose, its name, and the file and setting that give it."""

    maker: str
    name: str
    path: Path
    quant: str

    def __str__(self) -> str:
        return f"{self.maker} {self.name}"


@dataclass(frozen=True)
class Work:
    """One model on one text."""

    model: str
    text: EvalText
    text_path: Path
    tokens: int
    tools: Path


def main() -> None:
    """Measure what is not in the output yet, write it after each row, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True, help="folder with llama.cpp's llama-quantize")
    parser.add_argument("--output", type=Path, required=True, help="JSON file; what it holds is kept")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--texts", nargs="+", default=TEXTS, choices=TEXTS)
    parser.add_argument("--tokens", type=int, default=8 * WINDOW, help="tokens of each text")
    given = parser.parse_args()
    record = start_record(given.output)
    for model in given.models:
        whole = whole_gguf(model)
        ways = [*(Way("qwill", quant, whole, quant) for quant in OURS), *llama_cpp_ways(whole, given.tools)]
        for name in given.texts:
            path = Path(run([sys.executable, "-m", "scripts.eval_text", name]).splitlines()[-1])
            work = Work(model, read_text(path), path, given.tokens, given.tools)
            for row in rows(work, whole, ways, record["rows"]):
                record["rows"].append(row)
                write_record(record, given.output)
                print(
                    f"{row['model']}, {row['text']}, {row['way']}, {row['judge']}: {row['divergence']}", file=sys.stderr
                )
    print(tables(record["rows"]))


def start_record(path: Path) -> dict[str, Any]:
    """What an earlier run wrote, or a record without rows."""
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return known
    return {"benchmark": "quality", "window": WINDOW, "machine": machine_facts(), "rows": []}


def whole_gguf(model: str) -> Path:
    """The unquantized file of a model, made at first use and kept in the cache."""
    target = cache_root() / "quality" / f"{model}-F32.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source = resolve(model, progress=SilentProgress()).path
        run([sys.executable, "-m", "scripts.whole_gguf", str(source), str(target)])
    return target


def llama_cpp_ways(whole: Path, tools: Path) -> Iterator[Way]:
    """The files that llama-quantize makes of the unquantized one, at first use."""
    for name in LLAMA_CPP:
        target = whole.with_name(whole.name.replace("F32", name))
        if not target.exists():
            partial = target.with_suffix(".partial")
            run([str(tools / "llama-quantize"), str(whole), str(partial), name, str(usable_cores())])
            partial.rename(target)
        yield Way("llama.cpp", name, target, "auto")


def run(command: list[str]) -> str:
    """A tool's output; it ends this program if the tool fails."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{(result.stdout + result.stderr)[-2000:]}")
    return result.stdout


def rows(work: Work, whole: Path, ways: list[Way], done: list[Row]) -> Iterator[Row]:
    """Every row of one model and text that is not done yet."""
    known = {(row["model"], row["text"], row["way"], row["judge"]) for row in done}

    def is_new(way: Way, judge: str) -> bool:
        return (work.model, work.text.name, str(way), judge) not in known

    todo = [way for way in ways if any(is_new(way, judge) for judge in JUDGES)]
    if todo:
        baseline = loaded(whole, "none")
        cut = windows(baseline.tokenizer.encode(work.text.text)[: work.tokens], WINDOW)
        expected = [logits for window in cut for logits in window_logits(baseline, window)]
        for way in todo:
            tested = loaded(way.path, way.quant)
            for judge, change in JUDGES.items():
                tested = change(tested)
                if is_new(way, judge):
                    yield our_row(row_head(work, way, judge), expected, tested, cut)
    if (work.tools / "llama-perplexity").exists():
        for way in ways:
            if way.maker == "llama.cpp" and is_new(way, "llama.cpp"):
                yield their_row(work, whole, way)


def loaded(path: Path, quant: str) -> LoadedModel:
    """A model for our engine."""
    dtype = "float32" if quant == "none" else "auto"
    return load(str(path), EngineSettings(quant=quant, dtype=dtype, max_model_len=WINDOW), SilentProgress())


def weights_alone(tested: LoadedModel) -> LoadedModel:
    """The same weights, dequantized: all arithmetic is in fp32."""
    owners: list[Any] = [one for one in tested.model.modules() if isinstance(one, Embedding | Linear)]
    packed = {id(owner.weight): owner.weight for owner in owners}  # a tied matrix has two owners
    dense = {key: PackedWeight(one.columns, (pack_dense(one.dequantize()),)) for key, one in packed.items()}
    for owner in owners:
        owner.weight = dense[id(owner.weight)]
    shape: Any = tuple(tested.kv_cache.keys.shape)
    return replace(tested, kv_cache=KVCache.empty(shape, dtype=torch.float32, device=tested.device))


def as_it_runs(tested: LoadedModel) -> LoadedModel:
    """Nothing is changed."""
    return tested


JUDGES = {"as it runs": as_it_runs, "weights alone": weights_alone}
"""In this order: the second changes the model."""


def our_row(head: Row, expected: list[Tensor], tested: LoadedModel, cut: list[Sequence[int]]) -> Row:
    """Measure with our engine; `expected` are the baseline's logits of all steps."""
    got = (logits for window in cut for logits in window_logits(tested, window))
    targets = (part for window in cut for part in torch.split(torch.tensor(window[1:]), len(expected[0])))
    summary = summarize([score(*step) for step in zip(expected, got, targets, strict=True)])
    memory = model_size(tested.model).bits_per_weight if head["judge"] == "as it runs" else None
    return head | {"memory_bits_per_weight": memory, **summary, "divergence": asdict(summary["divergence"])}


def row_head(work: Work, way: Way, judge: str) -> Row:
    """What a row is about."""
    return {
        "model": work.model,
        "text": work.text.name,
        "text_sha256": work.text.sha256,
        "text_tokens": work.tokens,
        "way": str(way),
        "judge": judge,
        "file_bits_per_weight": file_bits(way.path) if way.maker == "llama.cpp" else None,
    }


def file_bits(path: Path) -> float:
    """Bits per weight of a file's tensors, all of them."""
    with open_checkpoint(path) as checkpoint:
        tensors = checkpoint.tensors.values()
        return 8 * sum(tensor.nbytes for tensor in tensors) / sum(tensor.numel for tensor in tensors)


def their_row(work: Work, whole: Path, way: Way) -> Row:
    """Measure with llama.cpp's own tool, which keeps the unquantized model's probabilities in a file."""
    base = whole.with_name(f"{work.model}-{work.text.name}.logits")
    common = ["-c", str(WINDOW), "--chunks", str(work.tokens // WINDOW), "-t", str(usable_cores())]
    tool = str(work.tools / "llama-perplexity")
    if not base.exists():
        run([tool, "-m", str(whole), "-f", str(work.text_path), "--kl-divergence-base", str(base), *common])
    told = run([tool, "-m", str(way.path), "--kl-divergence-base", str(base), "--kl-divergence", *common])
    return row_head(work, way, "llama.cpp") | {
        "divergence": {
            "mean": told_number(told, r"Mean\s+KLD"),
            "standard_error": told_number(told, r"Mean\s+KLD: +[\d.]+ ±", ""),
            "median": told_number(told, r"Median\s+KLD"),
            "percentile_99": told_number(told, r"99\.0%\s+KLD"),
            "maximum": told_number(told, r"Maximum KLD"),
        },
        "top1_agreement": told_number(told, r"Same top p"),
        "perplexity": told_number(told, r"Mean PPL\(Q\)"),
        "baseline_perplexity": told_number(told, r"Mean PPL\(base\)"),
    }


def told_number(text: str, label: str, after: str = r"\s*:") -> float:
    """The number after a label of llama-perplexity's report."""
    match = re.search(rf"{label}{after} +(-?[\d.]+)", text)
    if match is None:
        sys.exit(f"llama-perplexity did not tell {label}\n{text[-2000:]}")
    return float(match[1])


def tables(measured: list[Row]) -> str:
    """One Markdown table for each model and text."""
    kinds = dict.fromkeys((row["model"], row["text"]) for row in measured)
    return "\n".join(
        table(f"{model}, {text}", [row for row in measured if (row["model"], row["text"]) == (model, text)])
        for model, text in kinds
    )


def table(title: str, measured: list[Row]) -> str:
    """All ways on one model and text."""
    judges = (*JUDGES, "llama.cpp")
    by_way: dict[str, dict[str, Row]] = {}
    for row in measured:
        by_way.setdefault(row["way"], {})[row["judge"]] = row
    heads = ["way", "bits/weight", *(f"KL {judge}" for judge in judges), "same top-1 %", "perplexity"]
    lines = [f"**{title}**", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for way, found in by_way.items():
        main_row = found.get("as it runs") or next(iter(found.values()))
        cells = [way, bits(main_row), *(divergence(found.get(judge)) for judge in judges)]
        cells += [f"{main_row['top1_agreement']:.2f}"]
        cells += [f"{main_row['perplexity']:.3f} (unquantized {main_row['baseline_perplexity']:.3f})"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def bits(row: Row) -> str:
    """In the file where there is one, and in our memory."""
    known = {"file": row["file_bits_per_weight"], "memory": row.get("memory_bits_per_weight")}
    return ", ".join(f"{value:.2f} in {where}" for where, value in known.items() if value is not None)


def divergence(row: Row | None) -> str:
    """Mean and standard error."""
    return "–" if row is None else f"{row['divergence']['mean']:.5f} ± {row['divergence']['standard_error']:.5f}"


if __name__ == "__main__":
    main()
