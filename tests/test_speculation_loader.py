"""Settings become a proposer, and a draft model with other tokens is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwill.errors import ModelNotFoundError, SettingError
from qwill.hub.progress import SilentProgress
from qwill.loader import LoadedModel, load
from qwill.request import Request
from qwill.sampling_params import SamplingParams
from qwill.settings import EngineSettings
from qwill.speculation_loader import check_same_vocabulary, load_speculation
from qwill.tokenizer import Tokenizer

PLAIN = EngineSettings(dtype="float32", max_model_len=256)


@pytest.fixture(scope="module")
def target(tiny_chat_model: Path) -> LoadedModel:
    return load(str(tiny_chat_model), PLAIN, SilentProgress())


def with_settings(**values: Any) -> EngineSettings:
    return EngineSettings(dtype="float32", max_model_len=256, **values)


def decoding(*prompt: int) -> Request:
    return Request("r", list(prompt), SamplingParams(), 20, num_computed_tokens=len(prompt) - 1)


@pytest.fixture
def changed(tiny_chat_model: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """changed(edit) -> the tiny chat model with another tokenizer.json."""

    def make(edit: Callable[[dict[str, Any]], None]) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(tiny_chat_model, folder)
        data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        edit(data)
        (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        return folder

    return make


def swap(data: dict[str, Any]) -> None:
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def drop_last(data: dict[str, Any]) -> None:
    data["added_tokens"].pop()


def test_nothing_guesses_unless_asked_to(target: LoadedModel) -> None:
    assert load_speculation(PLAIN, target, SilentProgress()) is None


def test_prompt_lookup_needs_no_model(target: LoadedModel) -> None:
    speculation = load_speculation(with_settings(speculative="prompt_lookup"), target, SilentProgress())
    assert speculation is not None
    one = decoding(5, 6, 7, 8, 5, 6)
    speculation.propose([one])
    assert one.draft_token_ids[:2] == [7, 8]


def test_a_draft_model_is_loaded_and_guesses(target: LoadedModel, tiny_chat_model: Path) -> None:
    settings = with_settings(speculative="draft_model", draft_model=str(tiny_chat_model), num_speculative_tokens=1)
    speculation = load_speculation(settings, target, SilentProgress())
    assert speculation is not None
    one = decoding(5, 6, 7)
    speculation.propose([one])
    assert len(one.draft_token_ids) == 1
    assert 0 <= one.draft_token_ids[0] < target.tokenizer.vocab_size


def test_a_draft_model_that_is_not_there_is_an_error(target: LoadedModel, tmp_path: Path) -> None:
    settings = with_settings(speculative="draft_model", draft_model=str(tmp_path / "none"), offline=True)
    with pytest.raises(ModelNotFoundError):
        load_speculation(settings, target, SilentProgress())


@pytest.mark.parametrize(
    ("edit", "text"), [(swap, "ids that differ: 2"), (drop_last, "ids that differ: 1")], ids=["swapped", "missing"]
)
def test_a_draft_model_with_other_tokens_is_refused(
    target: LoadedModel, changed: Callable[..., Path], edit: Callable[[dict[str, Any]], None], text: str
) -> None:
    settings = with_settings(speculative="draft_model", draft_model=str(changed(edit)))
    with pytest.raises(SettingError, match=text) as caught:
        load_speculation(settings, target, SilentProgress())
    assert "token id" in caught.value.where
    assert caught.value.hint


def test_the_first_difference_is_named(tiny_chat_model: Path, changed: Callable[..., Path]) -> None:
    ours, theirs = Tokenizer.load(tiny_chat_model), Tokenizer.load(changed(drop_last))
    with pytest.raises(SettingError) as caught:
        check_same_vocabulary("small", theirs, ours)
    assert caught.value.where == "token id 260: nothing in the draft model, '</think>' in the model"
    check_same_vocabulary("small", ours, ours)
