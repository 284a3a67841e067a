"""The scheduler against a model of the cache: every request finds, in its blocks, exactly its own tokens' past.

The cache here holds, in each slot, the text up to that slot. So a block that is shared too early, evicted while it is
in use, copied wrongly or given to two requests is seen at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from qwill.block_pool import BlockPool
from qwill.errors import CapacityError, DeadlineError, OverloadedError
from qwill.request import Request
from qwill.sampling_params import SamplingParams
from qwill.scheduler import Limits, Scheduled, Scheduler, Step

SIZE = 4
PARAMS = SamplingParams(temperature=0.0)


def request(tokens: list[int], new: int = 4, **more: object) -> Request:
    return Request("r", tokens, PARAMS, max_tokens=new, **more)  # type: ignore[arg-type]


class World:
    """An engine without a model: the next token is the sum of those before it, and guesses are right or wrong."""

    def __init__(self, blocks: int, limits: Limits, *, prefix_cache: bool = True) -> None:
        self.pool = BlockPool(blocks, SIZE)
        self.scheduler = Scheduler(self.pool, limits, prefix_cache=prefix_cache)
        self.limits = limits
        self.cache: list[list[tuple[int, ...] | None]] = [[None] * SIZE for _ in range(blocks)]
        self.finished: list[Request] = []
        self.failed: list[Request] = []
        self.now = 0.0

    def step(self, guess: Callable[[Request], list[int]] = lambda _: []) -> Step:
        for one in self.scheduler.running:
            one.draft_token_ids = guess(one) if one.num_pending_tokens == 1 else []
        step = self.scheduler.schedule(self.now)
        while self.scheduler.copies:
            copy = self.scheduler.copies.popleft()
            self.cache[copy.target][: copy.count] = self.cache[copy.source][: copy.count]
        assert sum(share.count + len(share.draft) for share in step.scheduled) <= self.limits.max_batch_tokens or (
            not step.scheduled[0].request.use_cache
        )
        for share in step.scheduled:
            self.compute(share)
        for one, _ in step.failed:
            self.failed.append(one)
            self.scheduler.remove(one)
        self.check()
        return step

    def compute(self, share: Scheduled) -> None:
        one = share.request
        text = [*one.prompt_token_ids, *one.output_token_ids, *share.draft]
        if one.use_cache:
            start = one.num_computed_tokens
            for position in range(start, start + share.count + len(share.draft)):
                self.cache[one.block_table[position // SIZE]][position % SIZE] = tuple(text[: position + 1])
            for position in range(start):
                assert self.cache[one.block_table[position // SIZE]][position % SIZE] == tuple(text[: position + 1])
        accepted = 0
        ends = share.ends_prompt
        if ends:
            for guess in (*share.draft, None):
                token = next_token(one)
                one.output_token_ids.append(token)
                if token != guess or len(one.output_token_ids) == one.max_tokens:
                    break
                accepted += 1
        self.scheduler.note_computed(share, accepted)
        if len(one.output_token_ids) == one.max_tokens:
            self.finished.append(one)
            self.scheduler.remove(one)

    def check(self) -> None:
        running = self.scheduler.running
        used = {block for one in running for block in one.block_table}
        assert self.pool.num_free == self.pool.num_blocks - len(used)
        assert len(running) <= self.limits.max_num_seqs
        for one in running:
            assert len(set(one.block_table)) == len(one.block_table)
            assert one.num_computed_tokens < one.num_tokens
            assert len(one.block_table) * SIZE >= one.num_computed_tokens

    def run(self, most: int = 3000) -> None:
        for _ in range(most):
            if not self.scheduler.busy:
                return
            self.step()
        raise AssertionError("the scheduler did not come to an end")


def next_token(one: Request) -> int:
    return sum(one.prompt_token_ids + one.output_token_ids) % 3


def answer(prompt: list[int], count: int) -> list[int]:
    one = request(prompt)
    for _ in range(count):
        one.output_token_ids.append(next_token(one))
    return one.output_token_ids


def test_generating_requests_come_first_and_prompts_fill_the_step() -> None:
    world = World(64, Limits(10))
    first, long = request([1] * 3, 9), request([2] * 30, 2)
    world.scheduler.add(first)
    world.step()
    world.scheduler.add(long)
    step = world.step()
    assert [(share.request, share.count) for share in step.scheduled] == [(first, 1), (long, 9)]


def test_a_long_prompt_beside_generation_comes_in_small_pieces() -> None:
    world = World(600, Limits(512))
    first, long = request([1] * 3, 9), request([2] * 1000, 2)
    world.scheduler.add(first)
    world.step()
    world.scheduler.add(long)
    assert [share.count for share in world.step().scheduled] == [1, 128]
    assert [share.count for share in world.step().scheduled] == [1, 128]
    world.scheduler.remove(first)
    assert [share.count for share in world.step().scheduled] == [512]


def test_who_comes_first_is_served_first_and_priority_goes_before() -> None:
    world = World(64, Limits(8, max_num_seqs=1))
    requests = [request([n] * 8, 1, priority=priority) for n, priority in enumerate((0, 5, 0, -1))]
    for one in requests:
        world.scheduler.add(one)
    world.run()
    assert world.finished == [requests[3], requests[0], requests[2], requests[1]]


def test_a_full_queue_refuses_and_says_so() -> None:
    world = World(64, Limits(8, max_num_seqs=1, max_queue=2))
    for n in range(3):
        assert world.scheduler.room == 3 - n
        world.scheduler.add(request([n]))
    with pytest.raises(OverloadedError, match="requests wait already"):
        world.scheduler.add(request([9]))


def test_requests_without_the_cache_fill_the_queue_too() -> None:
    world = World(64, Limits(8, max_num_seqs=1, max_queue=2))
    for n in range(3):
        world.scheduler.add(request([n], use_cache=n == 1))
    assert world.scheduler.room == 0
    with pytest.raises(OverloadedError, match="2 requests wait already"):
        world.scheduler.add(request([9], use_cache=False))


def test_requests_without_a_cache_count_in_the_queue_and_have_priorities_too() -> None:
    world = World(64, Limits(8, max_num_seqs=1, max_queue=2))
    requests = [request([n], 1, use_cache=False, priority=-n) for n in range(3)]
    for one in requests:
        world.scheduler.add(one)
    with pytest.raises(OverloadedError):
        world.scheduler.add(request([9]))
    world.run()
    assert world.finished == requests[::-1]


def test_guesses_take_nobody_s_next_token() -> None:
    world = World(64, Limits(4))
    requests = [request([n], 9) for n in range(3)]
    for one in requests:
        world.scheduler.add(one)
    world.step()
    step = world.step(lambda _: [0, 0, 0])
    assert [share.request for share in step.scheduled] == requests
    assert [len(share.draft) for share in step.scheduled] == [1, 0, 0]


def test_what_a_tainted_request_computed_is_kept_for_nobody() -> None:
    world = World(64, Limits(8))
    shared = request([5] * 4, 1)
    world.scheduler.add(shared)
    world.run()
    tainted = request([5] * 4 + [6] * 20, 1)
    world.scheduler.add(tainted)
    world.step()
    world.scheduler.remove(tainted, tainted=True)
    assert world.pool.find([5] * 4 + [6] * 20).blocks == world.pool.find([5] * 4).blocks
    again = request([5] * 4 + [6] * 20, 2)
    world.scheduler.add(again)
    world.run()
    assert again.output_token_ids == answer([5] * 4 + [6] * 20, 2)


def test_a_request_that_does_not_fit_or_outgrows_the_whole_cache_fails_alone() -> None:
    world = World(4, Limits(64))
    huge, small = request([1] * 17, 1), request([2] * 4, 1)
    world.scheduler.add(huge)
    world.scheduler.add(small)
    step = world.step()
    assert [(one, type(error)) for one, error in step.failed] == [(huge, CapacityError)]
    world.run()
    assert world.finished == [small]
    world = World(2, Limits(64))  # one that outgrows the cache fails with what it has
    one = request([1] * 5, 100)
    world.scheduler.add(one)
    world.run()
    assert world.failed == [one]
    assert one.output_token_ids == answer([1] * 5, 4)
    assert world.pool.num_free == 2


def test_time_is_up_while_waiting_and_while_running() -> None:
    world = World(64, Limits(8, max_num_seqs=1))
    running, waiting, patient = request([1], 50, deadline=5.0), request([2], 3, deadline=5.0), request([3], 2)
    for one in (running, waiting, patient):
        world.scheduler.add(one)
    world.step()
    world.now = 5.0
    step = world.step()
    assert {one for one, _ in step.failed} == {running, waiting}
    assert all(isinstance(error, DeadlineError) for _, error in step.failed)
    world.run()
    assert world.finished == [patient]


def test_equal_prompts_at_once_are_computed_once() -> None:
    world = World(64, Limits(100))
    requests = [request([1, 2] * 8, 3) for _ in range(5)]
    for one in requests:
        world.scheduler.add(one)
    assert len(world.step().scheduled) == 1
    world.run()
    assert [one.cached_tokens for one in requests] == [0, 15, 15, 15, 15]


def test_a_fully_cached_prompt_computes_its_last_token_again() -> None:
    world = World(64, Limits(100))
    for _ in range(2):
        one = request([7] * 8, 1)
        world.scheduler.add(one)
        world.run()
    assert one.cached_tokens == 7


def test_a_rewritten_history_reuses_exactly_what_is_common() -> None:
    world = World(64, Limits(100))
    first, second = request([5, 6, 7, 8, 9, 1, 1, 1, 1, 1], 3), request([5, 6, 7, 8, 9, 1, 2, 2, 2, 2, 2, 2], 3)
    for one in (first, second):
        world.scheduler.add(one)
        world.run()
    assert second.cached_tokens == 6


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    world = World(64, Limits(100), prefix_cache=False)
    for _ in range(2):
        one = request([7] * 8, 1)
        world.scheduler.add(one)
        world.run()
    assert one.cached_tokens == 0
    assert world.pool.num_cached == 0


def test_equal_prompts_of_other_salts_or_lower_priority_are_not_waited_for() -> None:
    world = World(64, Limits(8))
    long = [1, 2] * 10
    world.scheduler.add(request(long, 3, priority=1))
    world.step()
    urgent, salted = request(long, 3), request(long, 3, priority=2, cache_salt="mine")
    world.scheduler.add(urgent)
    world.scheduler.add(salted)
    world.limits = world.scheduler.limits = Limits(200)
    assert {share.request for share in world.step().scheduled} > {urgent, salted}


def test_a_request_starts_only_where_the_running_ones_still_find_their_next_blocks() -> None:
    world = World(6, Limits(100))
    first, second = request([1] * 8, 5), request([2] * 16, 1)
    world.scheduler.add(first)
    world.step()
    world.scheduler.add(second)  # four blocks are free, and it needs four
    world.run()
    assert world.scheduler.num_preempted == 0
    assert world.finished == [first, second]


def test_a_preempted_request_keeps_its_tokens_and_loses_its_guesses() -> None:
    world = World(6, Limits(100))
    first, second = request([1] * 4, 16), request([2] * 8, 12)
    world.scheduler.add(first)
    world.scheduler.add(second)
    kept: list[int] = []
    while not world.scheduler.num_preempted:
        kept = list(second.output_token_ids)
        world.step(lambda one: [0] if one.max_tokens - len(one.output_token_ids) > 1 else [])
    assert (second.block_table, second.draft_token_ids) == ([], [])
    assert second.output_token_ids == kept
    world.run()
    assert second.output_token_ids == answer([2] * 8, 12)


def test_a_copy_that_was_never_made_counts_for_nothing() -> None:
    """A Ctrl-C between planning and computing: the request is dropped, and nobody finds what it did not compute."""
    world = World(16, Limits(100))
    world.scheduler.add(request([1] * 6, 1))
    world.run()
    dropped = request([1, 1, 1, 1, 1, 2, 2], 1)
    world.scheduler.add(dropped)
    world.scheduler.schedule(0.0)
    assert world.scheduler.copies
    world.scheduler.remove(dropped)
    assert not world.scheduler.copies
    again = request([1, 1, 1, 1, 1, 2, 2], 2)
    world.scheduler.add(again)
    world.run()
    assert world.finished[-1] is again


def test_requests_without_a_cache_take_turns_with_the_others() -> None:
    world = World(64, Limits(8))
    plain, cached = request([1] * 20, 3, use_cache=False), request([2] * 3, 5)
    world.scheduler.add(plain)
    world.scheduler.add(cached)
    world.run(most=9)
    assert plain.output_token_ids == answer([1] * 20, 3)
    assert cached.output_token_ids == answer([2] * 3, 5)


def random_request(choose: random.Random) -> Request:
    prompt = [0] * choose.choice((0, 8)) + choose.choices((0, 1), k=choose.randint(1, 14))
    return request(
        prompt,
        choose.choice((1, 5, 30)),
        priority=choose.choice((0, 0, 0, -1, 3)),
        cache_salt=choose.choice(("", "", "salt")),
        use_cache=choose.random() > 0.05,
        deadline=choose.choice((None, None, None, None, choose.uniform(0, 60))),
    )


def guesses(choose: random.Random, one: Request) -> list[int]:
    """Right ones, wrong ones, none; never past the request's last token."""
    shadow = request(list(one.prompt_token_ids))
    shadow.output_token_ids = list(one.output_token_ids)
    made: list[int] = []
    for _ in range(min(choose.randint(0, 6), one.max_tokens - len(one.output_token_ids) - 1)):
        made.append(next_token(shadow) if choose.random() < 0.8 else choose.randrange(3))
        shadow.output_token_ids.append(made[-1])
    return made


@pytest.mark.parametrize("part", range(8))
def test_thousands_of_random_schedules_leak_nothing_and_starve_nobody(part: int) -> None:
    """Small caches, budgets and queues; arrivals, aborts, deadlines, guesses. Every token is what it would be alone."""
    for seed in range(part * 300, (part + 1) * 300):
        random_schedule(random.Random(seed))


def random_schedule(choose: random.Random) -> None:
    limits = Limits(choose.randint(1, 24), choose.randint(1, 6), choose.randint(1, 8))
    world = World(choose.randint(3, 24), limits, prefix_cache=choose.random() > 0.2)
    todo = [random_request(choose) for _ in range(choose.randint(1, 12))]
    present: list[Request] = []
    while todo or world.scheduler.busy:
        world.now += 1
        assert world.now < 5000
        if todo and choose.random() < 0.4 and world.scheduler.room:
            present.append(todo.pop())
            world.scheduler.add(present[-1])
        if present and choose.random() < 0.03:
            aborted = choose.choice(present)
            world.scheduler.remove(aborted)
            world.scheduler.remove(aborted)
            present.remove(aborted)
        world.step(lambda one: guesses(choose, one))
    assert world.pool.num_free == world.pool.num_blocks
    for one in present:
        assert one in world.finished or one in world.failed
        assert one.output_token_ids == answer(one.prompt_token_ids, len(one.output_token_ids))
        assert one in world.failed or len(one.output_token_ids) == one.max_tokens


def test_ten_thousand_steps_of_one_engine_keep_their_books() -> None:
    choose = random.Random(11)
    world = World(20, Limits(12, 5, 6))
    for _ in range(10_000):
        world.now += 1
        if world.scheduler.room and choose.random() < 0.3:
            one = random_request(choose)
            one.deadline = one.deadline and world.now + one.deadline
            world.scheduler.add(one)
        world.step(lambda one: guesses(choose, one))
    assert len(world.finished) > 500
    assert len(world.failed) > 50
    assert world.scheduler.num_preempted > 50
    for one in world.finished:
        assert one.output_token_ids == answer(one.prompt_token_ids, one.max_tokens)
