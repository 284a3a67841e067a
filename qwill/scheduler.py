"""Scheduler: which requests compute which tokens in the next step, and in which blocks of the KV cache.

A step serves, within a budget of tokens, first the requests that are generating, one token of each and its guesses;
then prompts that were begun; then new ones, as many as there is room for. Always in order of priority, then arrival.
When blocks run out, the last in this order gives its own back and is computed again later, mostly from the prefix
cache. Who waits is never overtaken for want of blocks, so everybody comes to an end.

Pure bookkeeping, torch-free: knows neither tensors nor text, and not what becomes of the tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from qwill.block_pool import BlockPool, Prefix
from qwill.errors import CapacityError, DeadlineError, OverloadedError, QwillError
from qwill.request import Request

__all__ = ["BlockCopy", "Limits", "Scheduled", "Scheduler", "Step"]


PROMPT_TOKENS_BESIDE_GENERATION = 128
"""Most tokens of prompts in a step in which others generate: they would notice a longer one as a pause."""


@dataclass(frozen=True)
class Limits:
    """How much at once.

    max_batch_tokens  tokens that one step computes
    max_num_seqs      requests that are being computed; the others wait
    max_queue         requests that may wait; more are refused
    """

    max_batch_tokens: int
    max_num_seqs: int = 2**31
    max_queue: int = 2**31


@dataclass(frozen=True)
class Scheduled:
    """One request's share of a step: its next `count` known tokens, and guesses at what follows them."""

    request: Request
    count: int
    draft: tuple[int, ...] = ()

    @property
    def ends_prompt(self) -> bool:
        """True when the step computes the request's last known token, so that a new one can be chosen."""
        return self.count == self.request.num_pending_tokens

    @property
    def num_logits(self) -> int:
        """Rows of logits it asks for: after its last known token, and after each guess."""
        return 1 + len(self.draft) if self.ends_prompt else 0


@dataclass(frozen=True)
class BlockCopy:
    """The first `count` tokens of block `source` are needed in block `target` too, before the step is computed."""

    source: int
    target: int
    count: int


@dataclass
class Step:
    """What to compute now, and who cannot go on, with the reason."""

    scheduled: list[Scheduled] = field(default_factory=list)
    failed: list[tuple[Request, QwillError]] = field(default_factory=list)


@dataclass
class _Place:
    """What the scheduler remembers of a request."""

    order: tuple[int, int]  # priority, then arrival
    num_published: int = 0  # blocks of its table that are in the prefix cache
    started: bool = False  # it was scheduled once, perhaps preempted since


class Scheduler:
    """Holds all unfinished requests. `copies` are to be made, first to last, before a step is computed."""

    def __init__(self, pool: BlockPool, limits: Limits, *, prefix_cache: bool = True) -> None:
        self.pool, self.limits = pool, limits
        self.copies: deque[BlockCopy] = deque()
        self.num_preempted = 0
        self._prefix_cache = prefix_cache
        self._places: dict[Request, _Place] = {}
        self._waiting: list[Request] = []  # these three are in order
        self._running: list[Request] = []
        self._uncached: list[Request] = []
        self._arrivals = itertools.count()
        self._uncached_next = True

    @property
    def busy(self) -> bool:
        """True while any request is unfinished."""
        return bool(self._places)

    @property
    def room(self) -> int:
        """How many more requests may be added: to be computed at once, or to wait."""
        return max(self.limits.max_num_seqs + self.limits.max_queue - len(self._places), 0)

    @property
    def running(self) -> Sequence[Request]:
        """The requests that hold blocks, in the order in which they are served."""
        return self._running

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            OverloadedError: as many wait as may.
        """
        if self.room == 0:
            raise OverloadedError(
                f"{self.limits.max_queue} requests wait already, as many as may",
                hint="try again later, or raise max_queue",
            )
        self._places[request] = _Place((request.priority, next(self._arrivals)))
        self._insert(self._waiting if request.use_cache else self._uncached, request)

    def remove(self, request: Request, *, tainted: bool = False) -> None:
        """Forget a request, in whatever state, and free its blocks. Harmless when it is gone already.

        What a `tainted` one computed is not kept for others.
        """
        if request not in self._places:
            return
        for requests in (self._waiting, self._running, self._uncached):
            if request in requests:
                requests.remove(request)
        if tainted:
            request.num_computed_tokens = 0
            self.pool.discard(request.block_table)
        self._release(request)
        del self._places[request]

    def schedule(self, now: float) -> Step:
        """Plan one step; `now` is in seconds of `time.monotonic()`. Who is in `failed` must be removed."""
        step = Step(failed=[(r, _late()) for r in self._places if r.deadline is not None and r.deadline <= now])
        late = {request for request, _ in step.failed}
        alone = next((request for request in self._uncached if request not in late), None)
        self._uncached_next = not self._uncached_next
        if alone is not None and (self._uncached_next or not (self._running or self._waiting)):
            step.scheduled.append(Scheduled(alone, alone.num_tokens))
            return step
        generating = [request for request in self._running if request.num_pending_tokens == 1]
        plan = _Plan(self.limits.max_batch_tokens, guesses=max(self.limits.max_batch_tokens - len(generating), 0))
        started = [request for request in self._running if request.num_pending_tokens > 1]
        self._continue_all(generating, plan, step, late)
        if plan.shares:
            plan.budget = min(plan.budget, PROMPT_TOKENS_BESIDE_GENERATION)
        self._continue_all(started, plan, step, late)
        self._admit(plan, step, late)
        step.scheduled = list(plan.shares.values())
        return step

    def note_computed(self, share: Scheduled, accepted: int = 0) -> None:
        """A share was computed, and so many of its guesses were right: full blocks enter the prefix cache."""
        request = share.request
        if not request.use_cache:
            return
        request.num_computed_tokens += share.count + accepted
        self._publish(request, request.num_computed_tokens // self.pool.block_size)

    def _continue_all(self, requests: Sequence[Request], plan: _Plan, step: Step, late: set[Request]) -> None:
        for request in requests:
            if request not in late and request.block_table:  # it may have lost its blocks to one before it
                self._continue(request, plan, step)

    def _continue(self, request: Request, plan: _Plan, step: Step) -> None:
        """More of a running request: its next token with guesses, or the next piece of its prompt."""
        count = min(request.num_pending_tokens, plan.budget)
        if count == 0:
            return
        draft = tuple(request.draft_token_ids) if count == request.num_pending_tokens else ()
        draft = draft[: plan.guesses]
        if self._num_missing(request, count + len(draft)) > self.pool.num_free:
            draft = ()
        if self._reserve(request, count, plan, step):
            self._grow(request, count + len(draft))
            plan.add(Scheduled(request, count, draft))

    def _reserve(self, request: Request, count: int, plan: _Plan, step: Step) -> bool:
        """See that there are free blocks for `count` more tokens, if need be by preempting who comes after."""
        while self._num_missing(request, count) > self.pool.num_free:
            last = self._running[-1]
            if last is not request:
                self._preempt(last, plan)
                continue
            if len(self._running) == 1:
                step.failed.append((request, _too_large(request, self.pool)))
            return False
        return True

    def _preempt(self, request: Request, plan: _Plan) -> None:
        plan.drop(request)
        self.num_preempted += 1
        self._running.remove(request)
        self._release(request)
        self._insert(self._waiting, request)

    def _admit(self, plan: _Plan, step: Step, late: set[Request]) -> None:
        """Begin with waiting requests, in order, as far as budget, seats and blocks allow."""
        for request in list(self._waiting):
            if plan.budget == 0 or len(self._running) >= self.limits.max_num_seqs:
                return
            if request in late:
                continue
            if self.pool.blocks_for(request.num_tokens) > self.pool.num_blocks:
                step.failed.append((request, _too_large(request, self.pool)))
                continue
            prefix = self._find(request)
            if self._comes_soon(request, len(prefix.blocks)):
                continue
            if not self._fits(request, prefix):
                return
            self._start(request, prefix)
            count = min(request.num_pending_tokens, plan.budget)
            self._grow(request, count)
            plan.add(Scheduled(request, count))

    def _find(self, request: Request) -> Prefix:
        """What is cached of a request, but for its last token, which is computed for its logits."""
        if not self._prefix_cache:
            return Prefix([])
        return self.pool.find(request.tokens(0, request.num_tokens - 1), request.cache_salt)

    def _comes_soon(self, request: Request, num_blocks: int) -> bool:
        """Whether one before it is computing the block that it needs next, so that it is better to wait for it."""
        need = (num_blocks + 1) * self.pool.block_size
        if not self._prefix_cache or request.num_tokens <= need:
            return False
        begin, order = request.tokens(0, need), self._places[request].order
        return any(
            other.num_computed_tokens < need <= other.num_tokens
            and other.cache_salt == request.cache_salt
            and self._places[other].order < order
            and other.tokens(0, need) == begin
            for other in self._running
        )

    def _fits(self, request: Request, prefix: Prefix) -> bool:
        """Whether all its tokens find blocks, and each of the running requests still finds its next one."""
        missing = self.pool.blocks_for(request.num_tokens) - len(prefix.blocks)
        left = self.pool.num_free - self.pool.num_new_users(prefix.blocks) - missing
        return left >= len(self._running) if self._running else left >= 0

    def _start(self, request: Request, prefix: Prefix) -> None:
        self._waiting.remove(request)
        self._insert(self._running, request)
        self.pool.share(prefix.blocks)
        request.block_table = list(prefix.blocks)
        self._places[request].num_published = len(prefix.blocks)
        if prefix.count:
            self.pool.grow(request.block_table, len(prefix.blocks) + 1)
            self.copies.append(BlockCopy(prefix.partial, request.block_table[-1], prefix.count))
        request.num_computed_tokens = len(prefix.blocks) * self.pool.block_size + prefix.count
        if not self._places[request].started:
            request.cached_tokens = request.num_computed_tokens
        self._places[request].started = True

    def _num_missing(self, request: Request, count: int) -> int:
        """Blocks that it lacks for `count` more tokens."""
        return self.pool.blocks_for(request.num_computed_tokens + count) - len(request.block_table)

    def _grow(self, request: Request, count: int) -> None:
        self.pool.grow(request.block_table, self.pool.blocks_for(request.num_computed_tokens + count))

    def _publish(self, request: Request, full: int) -> None:
        """Enter the blocks up to number `full` into the prefix cache."""
        place, size = self._places[request], self.pool.block_size
        if not self._prefix_cache:
            return
        while place.num_published < full:
            i = place.num_published
            before = request.block_table[i - 1] if i else None
            own = request.block_table[i]
            block = self.pool.publish(own, request.tokens(i * size, size), before, request.cache_salt)
            if block != own:  # a new list: whoever remembers the old one sees that it changed
                request.block_table = [*request.block_table[:i], block, *request.block_table[i + 1 :]]
            place.num_published += 1

    def _release(self, request: Request) -> None:
        """Give its blocks back; what it computed stays in the prefix cache, the last, partly full block too."""
        self._cancel_copies(request)
        full, rest = divmod(request.num_computed_tokens, self.pool.block_size)
        if rest and self._prefix_cache:
            before = request.block_table[full - 1] if full else None
            tokens = request.tokens(full * self.pool.block_size, rest)
            self.pool.publish(request.block_table[full], tokens, before, request.cache_salt)
        self.pool.release(request.block_table)
        request.block_table = []
        request.draft_token_ids = []
        request.num_computed_tokens = 0
        self._places[request].num_published = 0

    def _cancel_copies(self, request: Request) -> None:
        """A copy that was never made, as the step was interrupted, must not count as computed, nor be made later."""
        table = request.block_table
        cancelled = [copy for copy in self.copies if copy.target in table]
        for copy in cancelled:
            self.copies.remove(copy)
            request.num_computed_tokens = table.index(copy.target) * self.pool.block_size

    def _insert(self, requests: list[Request], request: Request) -> None:
        bisect.insort(requests, request, key=lambda other: self._places[other].order)


@dataclass
class _Plan:
    """A step while it is being planned: who computes what, and how many more tokens may be."""

    budget: int
    guesses: int  # of the budget, what is left when each generating request has its next token
    shares: dict[Request, Scheduled] = field(default_factory=dict)

    def add(self, share: Scheduled) -> None:
        self.shares[share.request] = share
        self.budget -= share.count + len(share.draft)
        self.guesses -= len(share.draft)

    def drop(self, request: Request) -> None:
        share = self.shares.pop(request, None)
        if share is not None:
            self.budget += share.count + len(share.draft)
            self.guesses += len(share.draft)


def _late() -> DeadlineError:
    return DeadlineError("the request's time is up", hint="give a longer timeout, or fewer max_tokens")


def _too_large(request: Request, pool: BlockPool) -> CapacityError:
    return CapacityError(
        f"{request.num_tokens} tokens do not fit into a KV cache of {pool.num_blocks * pool.block_size}",
        where=f"request {request.request_id}",
        hint="shorten it, or raise kv_memory",
    )
