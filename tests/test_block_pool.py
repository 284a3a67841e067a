"""Blocks: none comes to two requests by mistake, and what was computed once is found again, to the token."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.block_pool import BlockPool, Prefix
from qwill.errors import CapacityError

SIZE = 4


def compute(pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """What a request does: share what is cached, compute the rest, publish it. Returns its table."""
    prefix = pool.find(tokens, salt)
    table = list(prefix.blocks)
    pool.share(table)
    for i in range(len(table), -(-len(tokens) // SIZE)):
        table.append(pool.allocate(after=table[-1] if table else None))
        chunk = tokens[i * SIZE : (i + 1) * SIZE]
        if len(chunk) == SIZE:
            table[i] = pool.publish(table[i], chunk, table[i - 1] if i else None, salt)
    return table


def test_a_request_grows_into_the_next_block() -> None:
    pool = BlockPool(8, SIZE)
    first = pool.allocate()
    assert [pool.allocate(after=first), pool.allocate(after=first + 1)] == [first + 1, first + 2]


def test_a_table_grows_to_what_its_tokens_need_and_never_shrinks() -> None:
    pool = BlockPool(8, SIZE)
    assert [pool.blocks_for(count) for count in (0, 1, SIZE, SIZE + 1)] == [0, 1, 1, 2]
    table: list[int] = []
    for wanted, length in ((2, 2), (3, 3), (1, 3)):
        pool.grow(table, wanted)
        assert len(table) == length
    assert table == list(range(table[0], table[0] + 3))


def test_a_new_request_starts_where_there_is_most_room() -> None:
    pool = BlockPool(10, SIZE)
    assert {pool.allocate() for _ in range(10)} == set(range(10))
    pool.release([1])
    pool.release([4, 5, 6, 7])
    assert pool.allocate() == 6


def test_two_growing_requests_both_stay_consecutive() -> None:
    pool = BlockPool(16, SIZE)
    one, other = [pool.allocate()], [pool.allocate()]
    for _ in range(6):
        one.append(pool.allocate(after=one[-1]))
        other.append(pool.allocate(after=other[-1]))
    assert one == list(range(one[0], one[0] + 7))
    assert other == list(range(other[0], other[0] + 7))


def test_an_empty_pool_is_a_typed_error() -> None:
    pool = BlockPool(1, SIZE)
    pool.allocate()
    with pytest.raises(CapacityError, match="in use"):
        pool.allocate(after=0)


def test_a_block_cannot_be_given_back_twice() -> None:
    pool = BlockPool(2, SIZE)
    block = pool.allocate()
    pool.release([block])
    with pytest.raises(ValueError, match="free already"):
        pool.release([block])


def test_a_text_is_found_again_whole_blocks_to_share_and_the_rest_to_copy() -> None:
    pool = BlockPool(8, SIZE)
    table = compute(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.find([1, 2, 3, 4, 5, 6, 7, 8, 9]) == Prefix(table)
    assert pool.find([1, 2, 3, 4, 5, 6, 7]) == Prefix(table[:1], table[1], 3)
    assert pool.find([1, 2, 3, 4, 5, 6, 9, 8]) == Prefix(table[:1], table[1], 2)
    assert pool.find([1, 2, 9]) == Prefix([], table[0], 2)
    assert pool.find([9, 2, 3, 4]) == Prefix([])
    assert pool.find([]) == Prefix([])


def test_equal_blocks_after_different_texts_are_different() -> None:
    pool = BlockPool(8, SIZE)
    compute(pool, [1, 1, 1, 1, 5, 5, 5, 5])
    second = compute(pool, [2, 2, 2, 2, 5, 5, 5, 5])
    assert pool.find([2, 2, 2, 2, 5, 5, 5, 5]).blocks == second
    assert pool.find([5, 5, 5, 5]) == Prefix([])


def test_another_salt_shares_nothing() -> None:
    pool = BlockPool(8, SIZE)
    table = compute(pool, [1, 2, 3, 4], salt="mine")
    assert pool.find([1, 2, 3, 4], "yours") == pool.find([1, 2, 3, 4]) == Prefix([])
    assert pool.find([1, 2, 3, 4], "mine") == Prefix(table)


def test_a_text_computed_twice_at_once_is_kept_once() -> None:
    pool = BlockPool(4, SIZE)
    one, other = pool.allocate(), pool.allocate()
    assert pool.publish(one, [1, 2, 3, 4], None) == one
    assert pool.publish(other, [1, 2, 3, 4], None) == one
    assert pool.num_free == 3
    pool.release([one])
    pool.release([one])
    assert pool.num_free == 4


def test_a_block_that_is_not_full_can_only_be_copied_from() -> None:
    pool = BlockPool(4, SIZE)
    block = pool.allocate()
    pool.publish(block, [1, 2, 3], None)
    pool.release([block])
    assert pool.find([1, 2, 3, 4, 5]) == Prefix([], block, 3)
    assert pool.find([1, 2, 3]) == Prefix([], block, 3)
    assert pool.find([1, 2]) == Prefix([], block, 2)


def test_the_longest_unused_goes_first_and_the_end_of_a_text_before_its_beginning() -> None:
    pool = BlockPool(4, SIZE)
    old = compute(pool, [1, 1, 1, 1, 2, 2, 2, 2])
    new = compute(pool, [1, 1, 1, 1, 3, 3, 3, 3])
    pool.release(old)
    pool.release(new)
    pool.allocate()  # the empty one
    assert [pool.allocate() for _ in range(3)] == [old[1], new[1], old[0]]
    assert pool.find([1, 1, 1, 1]) == Prefix([])


def test_salts_leave_nothing_behind() -> None:
    pool = BlockPool(2, SIZE)
    for number in range(100):
        pool.release(compute(pool, [1, 2, 3, 4], salt=str(number)))
    assert len(pool._roots) <= 2


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(2, 14))
def test_any_order_of_texts_keeps_the_books_right(seed: int, num_blocks: int) -> None:
    """Against brute force: what is found was computed with exactly these tokens before it, and nothing leaks."""
    choose = random.Random(seed)
    pool = BlockPool(num_blocks, SIZE)
    texts: dict[int, list[int]] = {}  # block -> all tokens up to its end, as far as anyone knows
    held: list[tuple[list[int], list[int]]] = []
    for _ in range(60):
        if held and choose.random() < 0.5:
            table, _ = held.pop(choose.randrange(len(held)))
            pool.release(table)
        else:
            tokens = choose.choices((1, 2), k=choose.randint(1, 3 * SIZE))
            prefix = pool.find(tokens)
            for i, block in enumerate(prefix.blocks):
                assert texts[block] == tokens[: (i + 1) * SIZE]
            if prefix.count:
                start = len(prefix.blocks) * SIZE
                assert texts[prefix.partial][: start + prefix.count] == tokens[: start + prefix.count]
            missing = -(-len(tokens) // SIZE) - len(prefix.blocks) + pool.num_new_users(prefix.blocks)
            if missing <= pool.num_free:
                table = compute(pool, tokens)
                for i, block in enumerate(table):
                    if len(tokens) >= (i + 1) * SIZE:
                        texts[block] = tokens[: (i + 1) * SIZE]
                held.append((table, tokens))
        used = {block for table, _ in held for block in table}
        assert pool.num_free == num_blocks - len(used)
        for table, tokens in held:  # a block of several requests holds the same text for all
            for i, block in enumerate(table[: len(tokens) // SIZE]):
                assert texts[block] == tokens[: (i + 1) * SIZE]
    for table, _ in held:
        pool.release(table)
    assert pool.num_free == num_blocks
    assert sorted(pool.allocate() for _ in range(num_blocks)) == list(range(num_blocks))
    assert pool.num_cached == 0


def seconds_per_text(num_texts: int, salted: bool) -> float:
    """Of a text that comes after so many others, which fill the pool; all begin alike, or each has its own salt."""
    pool = BlockPool(num_texts, SIZE)

    def come(n: int) -> None:
        tokens, salt = [7, n], str(n) if salted else ""
        pool.find(tokens, salt)
        block = pool.allocate()
        pool.publish(block, tokens, None, salt)
        pool.release([block])

    for n in range(num_texts):
        come(n)
    start = time.perf_counter()
    for n in range(num_texts, num_texts + 100):
        come(n)
    return (time.perf_counter() - start) / 100


@pytest.mark.parametrize("salted", [False, True])
def test_a_text_costs_the_same_however_many_others_are_cached(salted: bool) -> None:
    few, many = (min(seconds_per_text(n, salted) for _ in range(3)) for n in (100, 3_000))
    assert many < 10 * few


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=SIZE), max_size=12), st.lists(st.integers(0, 2)))
def test_the_block_copied_from_is_the_one_that_has_most_in_common(texts: list[list[int]], wanted: list[int]) -> None:
    pool = BlockPool(16, SIZE)
    for tokens in texts:
        block = pool.allocate()
        pool.release([pool.publish(block, tokens, None)])
    wanted = wanted[: SIZE - 1]
    shared = [next((n for n in range(len(wanted)) if t[n : n + 1] != wanted[n : n + 1]), len(wanted)) for t in texts]
    assert pool.find(wanted).count == max(shared, default=0)
