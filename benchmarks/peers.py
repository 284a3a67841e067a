"""qwill beside other engines on the same weights: decode, prefill, decode deep in a context, and batches, in turns.

Each measurement is a process of its own; engines take turns, round after round, so that a machine that slows down slows
all of them. The memory's read bandwidth is measured before every process. Peers are not installed by this script: an
engine whose path is not given is left out. Their versions are asked of them.

    python -m benchmarks.peers --model DIR --output FILE \
        [--llama-bench PATH --gguf Q4_0=FILE --gguf Q8_0=FILE] [--openvino PYTHON=MODEL_DIR] [--ort PYTHON=MODEL_DIR]

Tokens per second throughout. decode: 128 tokens after a prompt of 32. deep: 32 tokens after 4,096. batch 8, batch 32:
new tokens of so many requests together, each 64 after a prompt of 32 of its own, the time of the prompts included.
--figures chooses some of them. llama.cpp's batches come from the llama-batched-bench beside its llama-bench.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peer_worker import BATCH_NEW, BATCH_PROMPT, BATCHES, THREADS
from qwill.bench.machine import machine_facts, read_bandwidth

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "peer_worker.py"

TIME_LIMIT = 600
"""Seconds that one process may take."""

FIGURES = ("decode", "prefill", "deep", "batch")

Figures = dict[str, float]


def main() -> None:
    """Measure, print a table, write everything to a file."""
    options = parse()
    contestants = {**qwill(options), **llama_cpp(options), **workers(options)}
    runs: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for name, measure in contestants.items():
            bandwidth = read_bandwidth(threads=THREADS) / 1e9
            figures = measure()
            runs.append({"engine": name, "round": number, "read_gb_per_s": bandwidth, "figures": figures})
            print(f"{name:16} {bandwidth:5.1f} GB/s ", figures, flush=True)
    result = {"machine": machine_facts(), "command": sys.argv[1:], "runs": runs, "median": medians(runs)}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, figures in medians(runs).items():
        print(f"{name:16}", {key: round(value, 1) for key, value in figures.items()})


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True, help="the checkpoint's folder, unquantized, or a GGUF file")
    parser.add_argument("--quant", nargs="*", default=["int4", "int8", "none"], help="what qwill makes of it")
    parser.add_argument("--folder", nargs="*", default=[], help="NAME=DIR: what `qwill quantize` made, as it is")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--figures", nargs="+", default=FIGURES, choices=FIGURES, help="what is measured")
    parser.add_argument("--deep", type=int, default=4096, help="context of the deep measurement; 0 leaves it out")
    parser.add_argument("--llama-bench")
    parser.add_argument("--gguf", nargs="*", default=[], help="NAME=FILE")
    parser.add_argument("--openvino", nargs="*", default=[], help="NAME=PYTHON=MODEL_DIR")
    parser.add_argument("--ort", nargs="*", default=[], help="NAME=PYTHON=MODEL_DIR")
    return parser.parse_args()


def qwill(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """One contestant for each way to quantize."""
    made = {f"qwill {quant}": (options.model, quant) for quant in options.quant}
    for text in options.folder:
        name, folder = text.split("=")
        made[f"qwill {name}"] = (folder, "auto")
    return {
        name: partial(run_worker, [*worker(options, sys.executable, "qwill", model), "--quant", quant])
        for name, (model, quant) in made.items()
    }


def workers(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """Engines with a Python interface, each in its own environment."""
    found: dict[str, Callable[[], Figures]] = {}
    for engine in ("openvino", "ort"):
        for text in getattr(options, engine):
            name, python, folder = text.split("=")
            found[f"{engine} {name}"] = partial(run_worker, worker(options, python, engine, folder))
    return found


def worker(options: argparse.Namespace, python: str, engine: str, model: str) -> list[str]:
    """The command line of an engine's process."""
    return [python, str(WORKER), engine, model, "--deep", str(options.deep), "--figures", *options.figures]


def run_worker(command: list[str]) -> Figures:
    """The JSON of a worker's last line."""
    words = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT, check=True
    )
    figures: Figures = json.loads(words.stdout.splitlines()[-1])
    return figures


def llama_cpp(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """llama.cpp's own benchmark, one contestant for each GGUF file."""
    if not options.llama_bench:
        return {}
    files = dict(text.split("=") for text in options.gguf)
    return {f"llama.cpp {name}": partial(measure_llama, options, file) for name, file in files.items()}


def measure_llama(options: argparse.Namespace, file: str) -> Figures:
    """What is wanted of decode, prefill, decode deep in a context, and batches."""
    wanted, figures = set(options.figures), dict[str, float]()
    prompts, new = "512,2048" if "prefill" in wanted else "0", "128" if "decode" in wanted else "0"
    if wanted & {"decode", "prefill"}:
        found = llama_bench(options.llama_bench, file, "-p", prompts, "-n", new, "-d", "0")
        figures |= {f"prefill {row['n_prompt']}" if row["n_prompt"] else "decode": row["avg_ts"] for row in found}
    if "deep" in wanted and options.deep:
        deep = llama_bench(options.llama_bench, file, "-p", "0", "-n", "32", "-d", str(options.deep))
        figures["deep"] = deep[0]["avg_ts"]
    if "batch" in wanted:
        figures |= llama_batches(Path(options.llama_bench).with_name("llama-batched-bench"), file)
    return figures


def llama_bench(program: str, file: str, *options: str) -> list[dict[str, Any]]:
    """The rows of `llama-bench`: one repetition, after its own warm-up."""
    rows: list[dict[str, Any]] = json.loads(llama(program, file, "-r", "1", "-o", "json", *options))
    return rows


def llama_batches(program: Path, file: str) -> Figures:
    """`llama-batched-bench`, after its own warm-up: new tokens over the time of prompts and new tokens."""
    sizes = ",".join(map(str, BATCHES))
    lengths = ("-npp", str(BATCH_PROMPT), "-ntg", str(BATCH_NEW), "-npl", sizes)
    told = llama(str(program), file, "-c", "4096", "-b", "2048", "-ub", "512", *lengths, "--output-format", "jsonl")
    rows = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    return {f"batch {row['pl']}": row["pl"] * row["tg"] / row["t"] for row in rows}


def llama(program: str, file: str, *options: str) -> str:
    """What one of llama.cpp's tools prints."""
    command = [program, "-m", file, "-t", str(THREADS), *options]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT, check=True
    ).stdout


def environment() -> dict[str, str]:
    """Ours, with two threads for OpenMP and nothing of OpenBLAS's overrides."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    return {**kept, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}


def medians(runs: list[dict[str, Any]]) -> dict[str, Figures]:
    """Engine -> figure -> median over the rounds."""
    table: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for key, value in run["figures"].items():
            table.setdefault(run["engine"], {}).setdefault(key, []).append(value)
    return {
        engine: {key: statistics.median(values) for key, values in figures.items()} for engine, figures in table.items()
    }


if __name__ == "__main__":
    main()
