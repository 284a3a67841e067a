"""The state of one conversation: turns, system prompt, thinking, sampling. Knows no model, terminal or file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Conversation", "Message"]

Message = dict[str, Any]
"""{"role": "user" | "assistant" | "system", "content": text}."""


@dataclass
class Conversation:
    """`turns` alternate between user and assistant. Thinking is not kept: models are trained without old thoughts."""

    system: str | None = None
    think: bool | None = None
    """None: as the model's template does by itself."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the user has set."""
    turns: list[Message] = field(default_factory=list)
    first: int = 0
    """Index of the oldest turn that is still sent to the model."""

    def messages(self) -> list[Message]:
        """What is sent: the system prompt and the turns from `first` on."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + self.turns[self.first :]

    def ask(self, text: str) -> None:
        """Add the user's next turn."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add the model's next turn."""
        self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Remove the last question and its answer; return the question, None when there is none."""
        questions = [index for index, turn in enumerate(self.turns) if turn["role"] == "user"]
        if not questions:
            return None
        question = str(self.turns[questions[-1]]["content"])
        del self.turns[questions[-1] :]
        self.first = min(self.first, len(self.turns))
        return question

    def clear(self) -> None:
        """Forget all turns; the system prompt and the settings stay."""
        self.turns, self.first = [], 0

    def drop_oldest(self, fits: Callable[[list[Message]], bool]) -> int:
        """Stop sending the oldest questions with their answers until the rest fits; return how many were dropped.

        The last question is always sent.
        """
        dropped = 0
        while not fits(self.messages()):
            later = [i for i in range(self.first + 1, len(self.turns)) if self.turns[i]["role"] == "user"]
            if not later:
                break
            self.first = later[0]
            dropped += 1
        return dropped
