"""KL of keys and values in fewer bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine_kv import kv_divergence
from benchmarks.engine_work import Work


def test_fewer_bits_cost_more(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "What is true of one text need not be true of another. 一篇文章说明不了一切。" * 4, encoding="utf-8"
    )
    work = Work("", threads=1, text_tokens=120, window=64)
    found = {one.name: one for one in kv_divergence(work, str(tiny_model), {"english": text})}
    assert [name.split()[2] for name in found] == ["int8", "bfloat16"]
    eight, sixteen = found.values()
    assert 0.0 < sixteen.value < eight.value < 0.1
    assert eight.details["positions"] == 118
    assert eight.details["mean"] == pytest.approx(eight.value)
    assert eight.reached is None
