"""The cases of `bench kernels`: real work on real data, and honest counts of bytes and operations."""

from __future__ import annotations

import pytest
import torch

from qwill.bench import kernel_cases
from qwill.bench.kernel_cases import Case
from qwill.ops import native_ops
from qwill.quantization import FORMATS


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, str, int], Case]:
    """Every case with a small vocabulary and little uncached memory."""
    ops = native_ops()
    if ops is None:
        pytest.skip("the native ops are not built here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_cases, "UNCACHED_BYTES", 1 << 20)
        patch.setattr(kernel_cases, "V", 640)
        patch.setitem(kernel_cases.MATRICES, "lm_head", (1024, 640))
        cases = [make() for make in kernel_cases.cases(ops, 24, 40)]
    return {(case.op, case.weights, case.tokens): case for case in cases}


def test_every_case_computes_finite_numbers(made: dict[tuple[str, str, int], Case]) -> None:
    for case in made.values():
        results = case.run(case.copies - 1)
        for result in results if isinstance(results, tuple) else (results,):
            assert isinstance(result, torch.Tensor)
            assert len(result) == case.tokens
            assert result.isfinite().all(), case.op


def test_all_matrices_are_there_for_one_token_and_all_but_the_head_for_a_prompt(
    made: dict[tuple[str, str, int], Case],
) -> None:
    for weights in kernel_cases.WEIGHTS:
        for name in kernel_cases.MATRICES:
            assert (f"linear {name}", weights, 1) in made
            assert ((f"linear {name}", weights, 24) in made) == (name != "lm_head")


def test_a_matrix_counts_the_bytes_of_its_format_and_two_operations_for_each_weight(
    made: dict[tuple[str, str, int], Case],
) -> None:
    case = made["linear down_proj", "int4", 1]
    assert case.nbytes == FORMATS["uint4_super"].nbytes(1024, 3072) + 4 * (3072 + 1024)
    assert case.operations == 2 * 3072 * 1024
    assert made["linear down_proj", "int4", 24].operations == 24 * case.operations
    assert case.copies * case.nbytes >= 1 << 20


def test_attention_counts_the_keys_that_each_token_sees(made: dict[tuple[str, str, int], Case]) -> None:
    assert made["attention over 40", "bfloat16", 1].operations == 4 * 16 * 128 * 40
    assert made["attention over 24", "bfloat16", 24].operations == 4 * 16 * 128 * (24 * 25 // 2)


def test_what_comes_from_memory_is_known(made: dict[tuple[str, str, int], Case]) -> None:
    assert {case.op.split()[0] for case in made.values() if case.uncached} == {"linear", "attention"}
    assert not any(case.uncached for case in made.values() if case.tokens > 1)
