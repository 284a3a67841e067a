"""A conversation with a model: asks, shows the answer, keeps what came, watches the context. Knows no keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qwill.cli.conversation import Conversation, Message
from qwill.cli.reply import Reply, View, play, stats_line
from qwill.sampling_params import SamplingParams

if TYPE_CHECKING:
    from qwill.llm import LLM

__all__ = ["Talk"]

WARN_AT = 0.8
"""Share of the context from which on the user is told how full it is."""


class Talk:
    """One model, one conversation.

    `new_view` gives the place where the next answer is shown, `tell` says one remark, `count_prompt` the number of
    tokens that messages become, `sessions` is the folder of saved conversations.
    """

    def __init__(
        self,
        llm: LLM,
        conversation: Conversation,
        *,
        new_view: Callable[[], View],
        tell: Callable[[str], None],
        count_prompt: Callable[[list[Message]], int],
        sessions: Path,
    ) -> None:
        self.llm = llm
        self.conversation = conversation
        self.tell = tell
        self.sessions = sessions
        self.stats = False
        self.stream = True
        self.raw_special = False
        self.last: Reply | None = None
        self._new_view = new_view
        self._count_prompt = count_prompt

    @property
    def params(self) -> SamplingParams:
        """The model's defaults with what the user has set."""
        return self.llm.params(**self.conversation.overrides)

    def say(self, text: str) -> Reply:
        """Ask, show the answer and keep both; when the model fails, the conversation stays as it was.

        Raises:
            QwillError: what the model raised.
        """
        return self._exchange(text, list(self.conversation.turns))

    def say_again(self) -> Reply | None:
        """Answer the last question once more, in place of its answer; None when there is no question."""
        before = list(self.conversation.turns)
        question = self.conversation.take_back()
        return None if question is None else self._exchange(question, before)

    def _exchange(self, text: str, before: list[Message]) -> Reply:
        """Ask and keep the answer; when none comes, the turns are those `before` again."""
        first, kept = self.conversation.first, False
        try:
            self.conversation.ask(text)
            self._make_room()
            self.last = reply = self._answer()
            kept = bool(reply.content) or not reply.interrupted
        finally:
            if not kept:
                self.conversation.turns, self.conversation.first = before, first
        if kept:
            self.conversation.answer(reply.content)
        else:
            self.tell("stopped before the answer began; the question is not kept")
        if self.stats:
            self.tell(stats_line(reply))
        self._watch_context(reply)
        return reply

    def _answer(self) -> Reply:
        events = self.llm.stream_chat(
            self.conversation.messages(),
            self.params,
            enable_thinking=self.conversation.think,
            raw_special=self.raw_special,
        )
        return play(events, self._new_view(), stream=self.stream)

    def _make_room(self) -> None:
        """Stop sending the oldest turns when the prompt would leave no room for an answer."""
        limit = self.llm.max_model_len
        room = min(limit // 8, 256)
        dropped = self.conversation.drop_oldest(lambda messages: self._count_prompt(messages) + room <= limit)
        if dropped:
            turns = "turn is" if dropped == 1 else f"{dropped} turns are"
            self.tell(f"the context of {limit} tokens is full: the oldest {turns} no longer sent to the model")

    def _watch_context(self, reply: Reply) -> None:
        used = reply.metrics.prompt_tokens + reply.metrics.generated_tokens
        limit = self.llm.max_model_len
        if reply.finish_reason == "length" and used >= limit:
            self.tell(f"the answer was cut: the context of {limit} tokens is full (/new starts afresh)")
        elif used >= WARN_AT * limit:
            self.tell(f"context {100 * used // limit} % full: {used} of {limit} tokens")
