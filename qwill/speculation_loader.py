"""From settings to a `Speculation`: which proposer it gets, and the small model loaded where it is one.

Refuses a small model that speaks of other tokens. Knows no requests.
"""

from __future__ import annotations

import dataclasses

from qwill.draft_model import DraftModel
from qwill.errors import SettingError
from qwill.hub.progress import Progress
from qwill.loader import LoadedModel, load
from qwill.prompt_lookup import PromptLookup
from qwill.runner import ModelRunner
from qwill.settings import EngineSettings
from qwill.speculative import Proposer, Speculation
from qwill.tokenizer import Tokenizer

__all__ = ["check_same_vocabulary", "load_speculation"]


def load_speculation(settings: EngineSettings, target: LoadedModel, progress: Progress) -> Speculation | None:
    """What guesses for `target`; None where `settings.speculative` is off.

    Raises:
        QwillError: the draft model cannot be loaded (see `qwill.loader.load`), or has another vocabulary.
    """
    if settings.speculative == "off":
        return None
    proposer: Proposer = PromptLookup()
    if settings.draft_model is not None:
        proposer = _load_draft_model(settings.draft_model, settings, target, progress)
    return Speculation(proposer, max_tokens=settings.num_speculative_tokens)


def _load_draft_model(name: str, settings: EngineSettings, target: LoadedModel, progress: Progress) -> DraftModel:
    """The small model, in the formats of the large one, with a KV cache of as many bytes."""
    own = dataclasses.replace(
        settings,
        speculative="off",
        draft_model=None,
        revision=None,  # that one is of the large model's repository
        max_model_len=None,
        kv_memory=target.kv_cache.keys.nbytes + target.kv_cache.values.nbytes,
    )
    draft = load(name, own, progress)
    check_same_vocabulary(name, draft.tokenizer, target.tokenizer)
    return DraftModel(
        ModelRunner(draft.model, draft.kv_cache, draft.device),
        vocab_size=min(target.vocab_size, draft.config.vocab_size),
        max_batch_tokens=settings.max_batch_tokens,
    )


def check_same_vocabulary(name: str, draft: Tokenizer, target: Tokenizer) -> None:
    """Refuse a draft model, called `name`, whose ids stand for other tokens than the large model's.

    Raises:
        SettingError: names the first id that differs.
    """
    ours, theirs = ({number: text for text, number in t.vocabulary.items()} for t in (target, draft))
    differing = [number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number)]
    if differing:
        first = min(differing)
        raise SettingError(
            f"draft_model = {name}: its vocabulary is another one; ids that differ: {len(differing)}",
            where=f"token id {first}: {_named(theirs, first)} in the draft model, {_named(ours, first)} in the model",
            hint="take a smaller model of the same family and generation",
        )


def _named(vocabulary: dict[int, str], number: int) -> str:
    return f"{vocabulary[number]!r:.60}" if number in vocabulary else "nothing"
