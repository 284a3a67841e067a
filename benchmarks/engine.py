"""The engine's own figures, each in a process of its own: what batches, prefixes and guesses cost and bring.

    python -m benchmarks.engine --output benchmarks/results/engine-MACHINE.json [--parts prefix single …]

prefix: TTFT of a second request with a shared prefix. single: one request through the engine against a bare loop.
overhead: a full batch's step without its model. lookup: text editing with and without prompt lookup, on real weights.
memory: growth over thousands of requests. kv: KL of keys and values in 8 and 16 bits, on real weights. Real weights and
texts are fetched at first use. Every part may be run by itself; the output keeps the other parts that it holds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.engine_kv import kv_divergence
from benchmarks.engine_lookup import lookup
from benchmarks.engine_soak import memory
from benchmarks.engine_speed import overhead, prefix, single
from benchmarks.engine_work import Finding, Work
from qwill.bench.machine import machine_facts, read_bandwidth
from qwill.bench.random_model import random_model
from qwill.bench.results import write_record
from scripts import eval_text, weights

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 1800
"""Seconds that one part may take."""

LEARNT = "qwen2.5-coder-0.5b"
"""It follows instructions; scripts/weights.py fetches it."""

PARTS = ("prefix", "single", "overhead", "lookup", "memory", "kv")


def main() -> None:
    """Measure the parts that were asked for, and write the output after each."""
    options = parse()
    if options.here:
        found = measure(options.here, work_of(options))
        print(json.dumps([{**asdict(finding), "reached": finding.reached} for finding in found]))
        return
    record = start_record(options.output)
    for part in options.parts:
        bandwidth = read_bandwidth(options.threads)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        findings = run(part, options.threads)
        record["parts"][part] = {
            "started": now, "command": sys.argv[1:], "machine": machine_facts(), "read_bandwidth": bandwidth,
            "findings": findings,
        }  # fmt: skip
        write_record(record, options.output)
        print(*map(line, findings), sep="\n", flush=True)


def parse() -> argparse.Namespace:
    """The command line: what is measured, and every number of `Work`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file; what it holds is kept")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--here", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--model", default="random:qwen3-0.6b", help="a folder, a GGUF file or random:NAME")
    parser.add_argument("--real", default="", help="the model of lookup and kv; by default those that tests use")
    parser.add_argument("--tiny", default="random:qwen3-tiny", help="the model of the memory part")
    for field in fields(Work):
        if field.name not in ("model", "real", "tiny"):
            kind = type(field.default)
            parser.add_argument("--" + field.name.replace("_", "-"), type=kind, default=field.default)
    return parser.parse_args()


def work_of(options: argparse.Namespace) -> Work:
    """The options, with the folder of the part's model, which is made or fetched at first use."""
    given = {field.name: getattr(options, field.name) for field in fields(Work)}
    name = {"memory": "tiny", "lookup": "real", "kv": "real"}.get(options.here, "model")
    if given[name].startswith("random:"):
        given[name] = str(random_model(given[name]))
    if options.here == "lookup":
        given["real"] = given["real"] or str(weights.fetch(LEARNT))
    return Work(**given)


def measure(part: str, work: Work) -> list[Finding]:
    """One part, in this process."""
    parts: dict[str, Callable[[Work], list[Finding]]] = {
        "prefix": prefix,
        "single": single,
        "overhead": overhead,
        "lookup": lookup,
        "memory": memory,
        "kv": kv,
    }
    return parts[part](work)


def kv(work: Work) -> list[Finding]:
    """Both models that tests use: one with biases on keys, and one without."""
    texts = {name: eval_text.fetch(name) for name in eval_text.SOURCES}
    models = [work.real] if work.real else [str(weights.fetch(name)) for name in ("smollm2-135m", LEARNT)]
    return [finding for model in models for finding in kv_divergence(work, model, texts)]


def run(part: str, threads: int) -> list[dict[str, Any]]:
    """One part, in a process of its own: the JSON of its last line."""
    command = [sys.executable, "-m", "benchmarks.engine", *sys.argv[1:], "--here", part]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT, check=True
    )
    findings: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return findings


def start_record(path: Path) -> dict[str, Any]:
    """What an earlier run wrote, or a record without parts."""
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return known
    return {"benchmark": "engine", "parts": {}}


def line(found: dict[str, Any]) -> str:
    """One finding for the terminal."""
    asked = [f"{sign} {found[key]:g}" for key, sign in (("at_most", "≤"), ("at_least", "≥")) if found[key] is not None]
    verdict = {True: "reached", False: "NOT REACHED", None: ""}[found["reached"]]
    return f"{found['value']:10.4f}  {' '.join(asked):8} {verdict:12} {found['name']}"


if __name__ == "__main__":
    main()
