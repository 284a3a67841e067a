"""Tables and charts show every row."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from qwill.bench.report import print_report, write_chart
from qwill.bench.results import Difference, Group, Measurement, Row, Run
from qwill.errors import BenchmarkError

MACHINE = {"cpu": "A CPU", "usable_cores": 2, "python": "3.11", "versions": {"qwill": "0"}, "cpu_flags": []}


def row(name: str, label: str, speed: float, difference: Difference | None = None) -> Row:
    runs = [Run(32, [1, 2, 3], [0.1, 0.1 + 1 / speed * f, 0.1 + 2 / speed * f]) for f in (1.0, 1.25, 0.8)]
    return Row(name, label, 0.42, 1234 << 20, "bfloat16", 2, {}, 10**9, runs, difference)


ROWS = [
    row("qwill", "qwill [fast]", 30.0),
    row("transformers", "transformers", 12.0),
    row("llamacpp", "llama.cpp", 20.0, Difference(0, 2, 3, 4, None, near_tie=False)),
]
MEASURED = Measurement(
    "compare", "random:[x]", "qwen3", 596_049_920, "bfloat16", 2, "now", MACHINE, 4e10, {}, [Group(32, 3, ROWS)],
    ["a note in [brackets]"],
)  # fmt: skip


def printed(measured: Measurement) -> str:
    file = io.StringIO()
    print_report(measured, file)
    return file.getvalue()


def test_the_table_has_every_contestant_with_its_numbers() -> None:
    text = printed(MEASURED)
    lines = {line.split("  ")[1].strip(): line for line in text.splitlines() if " × " in line}
    assert set(lines) == {"qwill [fast]", "transformers", "llama.cpp"}
    for expected in (
        "0.42",
        "100 (100–100)",
        "320 (320–320)",
        "30.0 (24.0–37.5)",
        "2.50 ×",
        "30.0 (75%)",
        "1234",
        "equal",
    ):
        assert expected in lines["qwill [fast]"]
    assert "1.00 ×" in lines["transformers"]
    assert "differ at 3" in lines["llama.cpp"]


def test_head_and_notes_are_shown_as_they_are() -> None:
    text = printed(MEASURED)
    assert "random:[x]: qwen3, 596.0 M parameters, bfloat16, 2 threads" in text
    assert "memory read at 40.0 GB/s" in text
    assert "a note in [brackets]" in text


def test_one_row_alone_has_neither_ratio_nor_comparison() -> None:
    alone = Measurement(
        "decode", "m", "qwen3", 1, "float32", 1, "now", MACHINE, 4e10, {}, [Group(512, 1, [ROWS[0]])]
    )  # fmt: skip
    text = printed(alone)
    assert "prompt 512, 1 new tokens" in text
    assert "ratio" not in text
    assert "token ids" not in text


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_chart_is_written_in_the_kind_of_its_ending(tmp_path: Path, kind: str, begins: bytes) -> None:
    write_chart(MEASURED, tmp_path / "new" / f"chart.{kind}")
    assert (tmp_path / "new" / f"chart.{kind}").read_bytes().startswith(begins)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"\.png, \.svg, \.pdf"):
        write_chart(MEASURED, tmp_path / "chart.gif")
