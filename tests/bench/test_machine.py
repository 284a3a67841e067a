"""Facts about the machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
import torch

import qwill
from qwill.bench import machine


def test_facts_agree_with_other_sources_and_are_plain_data() -> None:
    facts = machine.machine_facts()
    assert facts["memory_bytes"] == psutil.virtual_memory().total
    assert 1 <= facts["usable_cores"] <= psutil.cpu_count()
    assert facts["versions"]["qwill"] == qwill.__version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cpu"]
    assert json.loads(json.dumps(facts)) == facts


def test_flags_that_matter_are_told_and_others_are_not() -> None:
    flags = machine._flags({"flags": "fpu avx2 avx512_vnni amx_bf16 fma sse4_1 f16c rdrand"})
    assert flags == ["amx_bf16", "avx2", "avx512_vnni", "f16c", "fma"]
    assert machine._flags({"Features": "fp asimd bf16 i8mm crc32"}) == ["asimd", "bf16", "i8mm"]
    assert machine._flags({}) == []


def test_peak_rss_rises_with_what_is_held() -> None:
    before = machine.peak_rss()
    assert before >= psutil.Process().memory_info().rss * 0.9
    block = bytearray(os.urandom(1)) * (machine.peak_rss() + (64 << 20))
    assert machine.peak_rss() > before + (32 << 20)
    del block
    assert machine.peak_rss() > before + (32 << 20)


def test_read_bandwidth_is_that_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 1 << 26)
    monkeypatch.setattr(machine, "BANDWIDTH_SECONDS", 0.05)
    assert 1e8 < machine.read_bandwidth(torch.get_num_threads()) < 1e13


def test_warming_reads_every_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"x" * 20)
    (tmp_path / "folder").mkdir()
    assert machine.warm_page_cache(tmp_path) == 1020
    assert machine.warm_page_cache(tmp_path / "b") == 20
