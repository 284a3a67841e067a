"""Sums and single ops as text, for any terminal and for a pipe."""

from __future__ import annotations

import io

import pytest

from qwill.cli.op_table import print_ops, print_times
from qwill.tracing import OpRecord, ShareRecord, StepRecord
from qwill.views.op_times import OpTime, PhaseTime
from qwill.views.roofline import HONEST, RooflineView

VIEW = RooflineView(
    ops=(
        OpTime("prefill", "linear", "mlp.down_proj", "int8", "native", 30, 0.25, 50_000_000, 4_000_000_000),
        OpTime("prefill", "rms_norm", "post_attention_layernorm", "float32", "native", 30, 0.5, 1000, 0),
    ),
    phases=(PhaseTime("prefill", 1, 32, 1.0, 0.75),),
    read_bandwidth=1e9,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_has_every_number_and_what_is_outside() -> None:
    out = io.StringIO()
    print_times(VIEW, out)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1] == "prefill: 1 step, 32 tokens, 1.00 s: 750 ms (75.0 %) in ops, 250 ms outside them"
    assert lines[3] == "post_attention_layernorm rms_norm 30 500 ms 50.0 % 1.00 kB 2.00 kB/s 0.0 % – –"
    assert lines[4] == "mlp.down_proj linear 30 250 ms 25.0 % 50.0 MB 200 MB/s 20.0 % 16.0 Gop/s 80"
    assert lines[5] == "outside ops 250 ms 25.0 %"
    assert " ".join(HONEST.split()) in " ".join(out.getvalue().split())
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("columns", "told"), [(200, ""), (90, "op/s, op/byte"), (64, "calls, bytes"), (10, "of memory")]
)
def test_a_narrow_terminal_goes_without_some_columns_and_says_so(
    columns: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    print_times(VIEW, out)
    text = out.getvalue()
    table = text[text.index("\nop ") : text.index("outside ops")].splitlines()
    assert all(len(line) <= max(columns, 52) for line in table)
    assert ("A wider terminal also shows" in text) == bool(told)
    assert told in text
    assert all(len(line) <= max(columns, 9) for line in text[text.index("How long") :].splitlines() if " " in line)


def test_what_is_not_known_is_a_dash() -> None:
    out = io.StringIO()
    print_times(RooflineView(VIEW.ops, VIEW.phases), out)
    assert [line.split()[-4] for line in out.getvalue().splitlines()[3:4]] == ["kB/s"]
    assert out.getvalue().splitlines()[3].split()[-3:] == ["–", "–", "–"]


def test_each_op_is_a_line_with_its_shapes() -> None:
    share = ShareRecord("a", 0, 4, 0, 1, (0,), 0, 4)
    step = StepRecord(0, 0.0, 0.1, (share,), 4, 3, 0, ())
    ops = [
        OpRecord(
            0, "rms_norm", "model.layers.2.mlp", 2, "native", ((4, 8), (8,)), (4, 8), "float32", 0.0, 2e-6, 200, 0
        ),
        OpRecord(0, "rows", "", None, "native", ((4, 8), (1,)), (1, 8), "float32\x1b[31m", 0.0, 0.0, 64, 0),
    ]
    out = io.StringIO()
    print_ops(ops, [step], out)
    head, first, second = (" ".join(line.split()) for line in out.getvalue().splitlines())
    assert head == "step phase layer op module dtype time bytes GB/s shapes"
    assert first == "0 prefill 2 rms_norm mlp float32 2.00 µs 200 B 0.10 4×8 8 -> 4×8"
    assert second == "0 prefill – rows – float32␛[31m 0.00 µs 64 B 0.00 4×8 1 -> 1×8"
