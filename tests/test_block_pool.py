"""Free blocks: none is handed out twice, and consecutive ones are preferred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwill.block_pool import BlockPool
from qwill.errors import CapacityError


def test_a_request_grows_into_the_next_block() -> None:
    pool = BlockPool(8)
    first = pool.allocate()
    assert [pool.allocate(after=first), pool.allocate(after=first + 1)] == [first + 1, first + 2]


def test_a_new_request_starts_where_there_is_most_room() -> None:
    pool = BlockPool(10)
    assert {pool.allocate() for _ in range(10)} == set(range(10))
    pool.release([1])
    pool.release([4, 5, 6, 7])
    assert pool.allocate() == 6


def test_two_growing_requests_both_stay_consecutive() -> None:
    pool = BlockPool(16)
    one, other = [pool.allocate()], [pool.allocate()]
    for _ in range(6):
        one.append(pool.allocate(after=one[-1]))
        other.append(pool.allocate(after=other[-1]))
    assert one == list(range(one[0], one[0] + 7))
    assert other == list(range(other[0], other[0] + 7))


def test_an_empty_pool_is_a_typed_error() -> None:
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(CapacityError, match="in use"):
        pool.allocate(after=0)


def test_a_block_cannot_be_given_back_twice() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release([block])
    with pytest.raises(ValueError, match="free already"):
        pool.release([block])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_any_order_of_calls_keeps_the_books_right(actions: list[tuple[bool, int]]) -> None:
    pool = BlockPool(12)
    held: list[int] = []
    for take, number in actions:
        if take and pool.num_free:
            block = pool.allocate(after=number if number < 12 else None)
            assert block not in held
            held.append(block)
        elif held:
            pool.release([held.pop(number % len(held))])
        assert pool.num_free == 12 - len(held)
