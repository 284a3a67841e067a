"""Which way a 16-bit linear layer is fastest on this CPU: the measurement behind `qwill.ops.reference.linear`.

    python benchmarks/linear.py --json benchmarks/results/linear-MACHINE.json

For Qwen3-0.6B's matrices and several numbers of rows, three ways: torch's own choice (oneDNN where it can), torch
with oneDNN off, and through fp32. One run, one machine; best of the passes within half a second, in bytes of weight per
second for few rows and operations per second for many.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qwill.bench.machine import machine_facts, read_bandwidth
from qwill.system import usable_cores

SHAPES = {"qkv_proj": (4096, 1024), "gate_up_proj": (6144, 1024), "down_proj": (1024, 3072), "lm_head": (151936, 1024)}
ROWS = (1, 4, 16, 64, 512)
COLD_BYTES = 1 << 27
"""With few rows, enough copies of a matrix are cycled through that none is still in the cache when its turn comes."""


def main() -> None:
    """Measure, print and, if asked, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--threads", type=int, default=usable_cores())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    record: dict[str, Any] = {
        "benchmark": "linear",
        "machine": machine_facts(),
        "threads": given.threads,
        "read_bandwidth": read_bandwidth(given.threads),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "rows": [],
    }
    for name, shape in SHAPES.items():
        for rows in ROWS if name != "lm_head" else ROWS[:2]:
            record["rows"].append(measure(name, shape, rows, torch.bfloat16))
            print(json.dumps(record["rows"][-1]))
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


def measure(name: str, shape: tuple[int, int], rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """Seconds per call of each way, and what that is in GB/s of weight and in Gop/s."""
    copies = max(1, COLD_BYTES // (shape[0] * shape[1] * dtype.itemsize)) if rows < ROWS[-2] else 1
    weights = [torch.randn(shape).to(dtype) for _ in range(copies)]
    x = torch.randn(rows, shape[1]).to(dtype)
    ways = {"torch": F.linear, "without_onednn": without_onednn, "through_fp32": through_fp32}
    result: dict[str, Any] = {"matrix": name, "shape": shape, "rows": rows, "dtype": str(dtype).removeprefix("torch.")}
    for way, call in ways.items():
        seconds = best_seconds(lambda call=call: [call(x, weight) for weight in weights]) / copies  # type: ignore[misc]
        result[way] = {
            "seconds": seconds,
            "weight_bytes_per_second": shape[0] * shape[1] * dtype.itemsize / seconds,
            "operations_per_second": 2 * rows * shape[0] * shape[1] / seconds,
        }
    return result


def without_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """torch's own product."""
    mkldnn: Any = torch.backends.mkldnn
    was_on = mkldnn.enabled
    mkldnn.enabled = False
    try:
        return F.linear(x, weight)
    finally:
        mkldnn.enabled = was_on


def through_fp32(x: Tensor, weight: Tensor) -> Tensor:
    """Convert both, multiply in fp32, round once."""
    return F.linear(x.float(), weight.float()).to(x.dtype)


def best_seconds(work: Callable[[], object]) -> float:
    """The fastest of at least two passes within half a second."""
    times: list[float] = []
    work()
    while len(times) < 2 or sum(times) < 0.5:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
