"""qwill beside other engines on the same weights: decode, prefill, and decode deep in a context, in turns.

Each measurement is a process of its own; engines take turns, round after round, so that a machine that slows down slows
all of them. The memory's read bandwidth is measured before every process. Peers are not installed by this script: an
engine whose path is not given is left out. Their versions are asked of them.

    python -m benchmarks.peers --model DIR --output FILE \
        [--llama-bench PATH --gguf Q4_0=FILE --gguf Q8_0=FILE] [--openvino PYTHON=MODEL_DIR] [--ort PYTHON=MODEL_DIR]

Tokens per second throughout. decode: 128 tokens after a prompt of 32. deep: 32 tokens after 4,096.
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

from qwill.bench.machine import machine_facts, read_bandwidth

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "peer_worker.py"
THREADS = 2

TIME_LIMIT = 600
"""Seconds that one process may take."""

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
    parser.add_argument("--deep", type=int, default=4096, help="context of the deep measurement; 0 leaves it out")
    parser.add_argument("--llama-bench")
    parser.add_argument("--gguf", nargs="*", default=[], help="NAME=FILE")
    parser.add_argument("--openvino", nargs="*", default=[], help="NAME=PYTHON=MODEL_DIR")
    parser.add_argument("--ort", nargs="*", default=[], help="NAME=PYTHON=MODEL_DIR")
    return parser.parse_args()


def qwill(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """One contestant for each way to quantize."""
    command = [sys.executable, str(WORKER), "qwill"]
    made = {f"qwill {quant}": [*command, options.model, str(options.deep), quant] for quant in options.quant}
    for text in options.folder:
        name, folder = text.split("=")
        made[f"qwill {name}"] = [*command, folder, str(options.deep), "auto"]
    return {name: partial(run_worker, call) for name, call in made.items()}


def workers(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """Engines with a Python interface, each in its own environment."""
    found: dict[str, Callable[[], Figures]] = {}
    for engine in ("openvino", "ort"):
        for text in getattr(options, engine):
            name, python, folder = text.split("=")
            found[f"{engine} {name}"] = partial(run_worker, [python, str(WORKER), engine, folder, str(options.deep)])
    return found


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
    """Decode, prefill, and decode deep in a context."""
    found = llama_bench(options.llama_bench, file, "-p", "512,2048", "-n", "128", "-d", "0")
    figures = {f"prefill {row['n_prompt']}" if row["n_prompt"] else "decode": row["avg_ts"] for row in found}
    if options.deep:
        deep = llama_bench(options.llama_bench, file, "-p", "0", "-n", "32", "-d", str(options.deep))
        figures["deep"] = deep[0]["avg_ts"]
    return figures


def llama_bench(program: str, file: str, *options: str) -> list[dict[str, Any]]:
    """The rows of `llama-bench`: one repetition, after its own warm-up."""
    command = [program, "-m", file, "-t", "2", "-r", "1", "-o", "json", *options]
    words = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT, check=True)
    rows: list[dict[str, Any]] = json.loads(words.stdout)
    return rows


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
