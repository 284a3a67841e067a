"""What serving a workload gave, as tables for the terminal."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from qwill.bench.report import PLAIN_WIDTH, head, short
from qwill.bench.serve_offline import (
    PERCENTILES,
    ServeMeasurement,
    acceptance,
    latencies,
    prefix_hit_share,
    shares_of_time,
    throughput,
)

__all__ = ["print_serving"]

LATENCIES = {"time_to_first_token": "TTFT", "time_per_output_token": "per output token", "end_to_end": "end to end"}


def print_serving(measured: ServeMeasurement, file: TextIO) -> None:
    """Write the head, the tables of throughput, latency and time, and the notes."""
    console = Console(file=file, width=None if file.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(f"{head(measured.about)}\n\n{_work(measured)}", markup=False)
    for table in (_throughput(measured), _latency(measured), _time(measured)):
        console.print(table)
    for note in measured.about.notes:
        console.print(f"· {note}", markup=False)


def _work(measured: ServeMeasurement) -> str:
    """The workload in a line."""
    asked = measured.about.settings
    prompt, new = (" – ".join(map(str, asked[name])) for name in ("prompt_tokens", "new_tokens"))
    prefix = f" after a shared prefix of {asked['shared_prefix']}" if asked["shared_prefix"] else ""
    arrive = f"{asked['rate']:g} arrive per second" if asked["rate"] else "all at once"
    return (
        f"{asked['requests']} requests of {prompt} prompt tokens{prefix} and {new} new ones, "
        f"{'sampled' if asked['sampled'] else 'greedy'}; {arrive}, at most {asked['max_num_seqs']} at a time"
    )


def _table(title: str, *columns: str, rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    for row in rows:
        table.add_row(*row)
    return table


def _throughput(measured: ServeMeasurement) -> Table:
    serving, accepted = measured.serving, acceptance(measured.serving)
    speeds = throughput(serving)
    share = measured.read_speed / measured.about.read_bandwidth
    cells = {
        "requests/s": short(speeds["requests_per_second"]),
        "prompt tok/s": short(speeds["prompt_tokens_per_second"]),
        "output tok/s": short(speeds["output_tokens_per_second"]),
        "all tok/s": short(speeds["total_tokens_per_second"]),
        "batch": short(serving.mean_batch),
        "prefix hits": f"{prefix_hit_share(serving):.0%}",
        "preemptions": str(serving.stats.preemptions),
        "right guesses": "–" if accepted is None else f"{accepted:.0%}",
        "GB/s": f"{short(measured.read_speed / 1e9)} ({share:.0%})",
        "peak RSS MiB": f"{measured.peak_rss / 2**20:.0f}",
    }
    return _table(f"served in {short(serving.seconds)} s", *cells, rows=[list(cells.values())])


def _latency(measured: ServeMeasurement) -> Table:
    rows = [
        [LATENCIES[name], *(short(seconds * 1e3) for seconds in found.values())]
        for name, found in latencies(measured.serving).items()
    ]
    return _table("latency in ms", "", *(f"p{percent}" for percent in PERCENTILES), rows=rows)


def _time(measured: ServeMeasurement) -> Table:
    parts, steps = shares_of_time(measured.serving), measured.serving.stats.steps
    whole = sum(parts.values())
    rows = [
        [name, short(seconds), f"{seconds / whole:.1%}", short(seconds / steps * 1e3)]
        for name, seconds in parts.items()
    ]
    return _table(f"where the time of {steps} steps went", "", "s", "share", "ms per step", rows=rows)
