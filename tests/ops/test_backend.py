"""Which ops run: by what they are given, by what was built, and by two environment variables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from qwill.ops import native_ops, reference
from qwill.ops.backend import ops_for

ASK = "from qwill.ops import native_ops; ops = native_ops(); print(ops.isa if ops else 'reference')"


def ask(**variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QWILL_")}
    return run(ASK, {**kept, **variables})


def run(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_only_fp32_on_the_cpu_runs_on_native_ops() -> None:
    assert ops_for(torch.zeros(1)) is (native_ops() or reference)
    for about in ({"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"device": "meta"}):
        assert ops_for(torch.zeros(1, **about)) is reference  # type: ignore[call-overload]


def test_the_reference_can_be_asked_for() -> None:
    assert ask(QWILL_OPS="reference").stdout.strip() == "reference"


def test_every_instruction_set_of_the_machine_can_be_asked_for() -> None:
    native = pytest.importorskip("qwill._native", reason="the native kernels were not built")
    assert native.instruction_sets()[-1] == "baseline"
    for name in ("", *native.instruction_sets()):
        assert ask(QWILL_ISA=name).stdout.strip() == (name or native.instruction_sets()[0])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"QWILL_OPS": "fast"}, ["QWILL_OPS='fast' is not a known back end", "hint: native or reference"]),
        ({"QWILL_ISA": "avx1024"}, ["QWILL_ISA='avx1024' does not run here", "baseline"]),
    ],
)
def test_unknown_names_are_errors_with_the_known_ones(variables: dict[str, str], words: list[str]) -> None:
    pytest.importorskip("qwill._native", reason="the native kernels were not built")
    answer = ask(**variables)
    assert answer.returncode != 0
    assert all(word in answer.stderr for word in words)


def test_native_ops_that_were_not_built_are_missed_only_when_asked_for() -> None:
    hide = "import sys; sys.modules['qwill._native'] = None; import importlib.util as u; find = u.find_spec; "
    hide += "u.find_spec = lambda name, *a: None if name == 'qwill._native' else find(name, *a); "
    warn = "; from qwill.ops import warn_if_not_built as warn; warn(); warn()"
    for choice, output in (("", "reference"), ("native", "were not built")):
        answer = run(hide + ASK + warn, {**os.environ, "QWILL_OPS": choice})
        assert output in answer.stdout + answer.stderr
        assert answer.stderr.count("which is slower") == (choice == "")
