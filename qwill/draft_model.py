"""DraftModel: a small model writes ahead, greedily, what a large one is asked to verify. Knows token ids only.

Speculative decoding with a draft model: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, and Chen et al. 2023,
https://arxiv.org/abs/2302.01318. Each request has a shadow here: the same tokens, and the small model's cache of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qwill.block_pool import BlockPool
from qwill.request import Request
from qwill.runner import ModelRunner
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Scheduled

__all__ = ["DraftModel"]


@dataclass(eq=False)
class _Shadow:
    """The small model's view of a request: `state` holds its tokens and then the guesses of the last round.

    The first `confirmed` tokens of the answer were the real ones when it was last looked at; later ones were guesses.
    A prompt with ids that the small model does not have is not `readable`.
    """

    state: Request
    readable: bool
    confirmed: int = 0

    def follow(self, request: Request) -> None:
        """Take over the real tokens. What was computed stays as far as the guesses came true."""
        real, state = request.output_token_ids, self.state
        same = min(self.confirmed, len(real))
        while same < min(len(real), len(state.output_token_ids)) and real[same] == state.output_token_ids[same]:
            same += 1
        state.output_token_ids[same:] = real[same:]
        # The last token is computed anew in any case: its logits are what comes next.
        agreed = len(state.prompt_token_ids) + same
        state.num_computed_tokens = min(state.num_computed_tokens, agreed, state.num_tokens - 1)
        self.confirmed = len(real)

    @property
    def guesses(self) -> list[int]:
        """What was guessed after the real tokens."""
        return self.state.output_token_ids[self.confirmed :]


class DraftModel:
    """Proposes what the model of `runner` would say, for a whole batch at a time.

    The runner has a KV cache of its own. `vocab_size` counts the tokens that both models have in common.
    `max_batch_tokens` bounds what one call takes in of prompts and answers that are new to it: a long prompt is read
    over several calls, and has no guesses until then. Where the cache is full, the requests that were left longest ago
    give up their room, and are read again when they come back; who finds no room even so gets no guesses.
    """

    def __init__(self, runner: ModelRunner, *, vocab_size: int, max_batch_tokens: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._max_batch_tokens = max_batch_tokens
        self._pool = BlockPool(runner.kv_cache.num_blocks, runner.kv_cache.block_size)
        self._max_model_len = runner.model.config.max_position_embeddings
        self._shadows: OrderedDict[Request, _Shadow] = OrderedDict()  # the longest unused first

    @property
    def num_free_blocks(self) -> int:
        """Blocks of its cache that hold nothing."""
        return self._pool.num_free

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> list[list[int]]:
        """For each request at most `most[i]` token ids after its last known one: the most probable, one by one."""
        shadows = [self._shadow_of(request) for request in requests]
        wanted = {
            shadow.state: shadow.state.num_tokens + count
            for shadow, count in zip(shadows, most, strict=True)
            if count and shadow.readable
        }
        shares = self._first_shares(wanted)
        while shares:
            self._compute(shares)
            shares = [Scheduled(state, 1) for state in self._unfinished(shares, wanted)]
        return [shadow.guesses for shadow in shadows]

    def forget(self, request: Request) -> None:
        """Free what is kept of a request. Harmless when nothing is."""
        shadow = self._shadows.pop(request, None)
        if shadow is not None:
            self._release(shadow.state)

    def _shadow_of(self, request: Request) -> _Shadow:
        """The shadow with the request's tokens, now the last to give up its room."""
        if request not in self._shadows:
            state = Request(request.request_id, request.prompt_token_ids, SamplingParams(), request.max_tokens)
            readable = max(request.prompt_token_ids) < self._runner.model.config.vocab_size
            self._shadows[request] = _Shadow(state, readable)
        shadow = self._shadows[request]
        self._shadows.move_to_end(request)
        shadow.follow(request)
        return shadow

    def _first_shares(self, wanted: dict[Request, int]) -> list[Scheduled]:
        """What is not computed yet of each, within the budget; who lacks least comes first."""
        shares: list[Scheduled] = []
        budget = self._max_batch_tokens
        for state in sorted(wanted, key=lambda state: state.num_pending_tokens):
            if budget > 0 and self._reserve(state, wanted[state], wanted):
                shares.append(Scheduled(state, min(state.num_pending_tokens, budget)))
                budget -= shares[-1].count
        return shares

    def _compute(self, shares: Sequence[Scheduled]) -> None:
        """One round: each share is computed, and where it ends the known tokens, one more is guessed."""
        logits = self._runner.run(shares)
        guesses = iter(logits[:, : self._vocab_size].argmax(dim=1).tolist())
        for share in shares:
            ends = share.ends_prompt
            share.request.num_computed_tokens += share.count
            if ends:
                share.request.output_token_ids.append(next(guesses))

    def _unfinished(self, shares: Sequence[Scheduled], wanted: dict[Request, int]) -> list[Request]:
        """Whose next token can be guessed in another round, and is to be."""
        states = [share.request for share in shares]
        return [state for state in states if state.num_pending_tokens == 1 and state.num_tokens < wanted[state]]

    def _reserve(self, state: Request, num_tokens: int, asked: Collection[Request]) -> bool:
        """Blocks for its tokens and its guesses, `num_tokens` in all; or it gives up those that it has.

        The last guess needs no room: it is not computed.
        """
        blocks = self._pool.blocks_for(num_tokens - 1)
        fits = num_tokens <= self._max_model_len and blocks <= self._pool.num_blocks
        if not fits or not self._make_room(blocks - len(state.block_table), asked):
            self._release(state)
            return False
        self._pool.grow(state.block_table, blocks)
        return True

    def _make_room(self, blocks: int, asked: Collection[Request]) -> bool:
        """See that so many blocks are free, if need be by taking those of requests that were left longest ago."""
        idle = (shadow.state for shadow in self._shadows.values() if shadow.state not in asked)
        while blocks > self._pool.num_free:
            other = next(idle, None)
            if other is None:
                return False
            self._release(other)
        return True

    def _release(self, state: Request) -> None:
        self._pool.release(state.block_table)
        state.block_table = []  # a new list: whoever remembers the old one sees that it is another
        state.num_computed_tokens = 0
