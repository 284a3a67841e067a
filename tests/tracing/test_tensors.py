"""What was kept, read back from its file by the safetensors library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from qwill import LLM, SamplingParams
from qwill.errors import CapacityError, SettingError
from qwill.tracing import Trace, tensors, trace
from qwill.tracing.tensors import KINDS, write_tensors

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def seen(llm: LLM) -> Trace:
    with trace(llm, residuals=True, attention=True, mlp=True) as seen:
        llm.generate("To be, or not", PARAMS, request_id="你好\ud800")
    return seen


def test_every_tensor_is_in_the_file_with_its_name(seen: Trace, tmp_path: Path) -> None:
    write_tensors(seen, tmp_path / "kept.safetensors", KINDS)
    one = seen.request()
    with safe_open(tmp_path / "kept.safetensors", framework="pt") as file:
        assert file.metadata() == {
            "format": "qwill-trace-1",
            "model": seen.model_name,
            "request_id": "你好\\ud800",
            "num_prompt_tokens": "13",
            "first": "0",
        }
        layers = range(3)
        names = {"token_ids", "residuals", *(f"attention.{i}" for i in layers), *(f"mlp.{i}" for i in layers)}
        assert set(file.keys()) == names
        assert file.get_tensor("token_ids").tolist() == one.token_ids
        assert torch.equal(file.get_tensor("residuals"), one.residuals)
        for layer in layers:
            assert torch.equal(file.get_tensor(f"attention.{layer}"), one.attention(layer))
            assert torch.equal(file.get_tensor(f"mlp.{layer}"), one.mlp(layer))


def test_only_what_was_asked_for_is_written(seen: Trace, tmp_path: Path) -> None:
    write_tensors(seen, tmp_path / "kept.safetensors", ["mlp"])
    with safe_open(tmp_path / "kept.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"token_ids", "mlp.0", "mlp.1", "mlp.2"}


def test_what_is_unknown_or_was_not_kept_is_refused_and_leaves_no_file(llm: LLM, seen: Trace, tmp_path: Path) -> None:
    path = tmp_path / "kept.safetensors"
    with pytest.raises(SettingError, match="'logits'"):
        write_tensors(seen, path, ["logits"])
    with trace(llm, mlp=True) as other:
        llm.generate("abc", PARAMS)
    with pytest.raises(SettingError, match="attention was not kept"):
        write_tensors(other, path, ["attention"])
    assert list(tmp_path.iterdir()) == []


def test_more_than_memory_holds_is_refused_before_it_is_computed(
    seen: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = 4 * 3 * 6 * 18 * 18  # layers, heads, T, N
    monkeypatch.setattr(tensors, "available_memory", lambda: 2 * need - 1)
    with pytest.raises(CapacityError, match="attention of 18 tokens"):
        write_tensors(seen, tmp_path / "kept.safetensors", ["attention"])
    monkeypatch.setattr(tensors, "available_memory", lambda: 2 * need)
    write_tensors(seen, tmp_path / "kept.safetensors", ["attention"])
