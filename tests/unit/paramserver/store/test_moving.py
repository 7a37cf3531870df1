"""Blocks are given away in pieces, few of them at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.store.moving import WINDOW_BYTES, WINDOW_S, MoveQueue, Segment, queue_of_link


@given(
    window=st.integers(1, 60),
    piece=st.none() | st.integers(1, 40),
    blocks=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100)), min_size=1, max_size=8),
    seed=st.integers(0, 10**6),
)
def test_every_byte_is_sent_once_and_no_more_than_the_window_is_under_way(
    window: int, piece: int | None, blocks: list[tuple[int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    queue = MoveQueue(window, piece)
    left = [(number, *each) for number, each in enumerate(blocks)]
    under_way: list[Segment] = []
    sent: dict[int, list[Segment]] = {number: [] for number in range(len(blocks))}
    complete: dict[int, int] = {}
    while len(complete) < len(blocks):
        if left and rng.random() < 0.3:
            queue.add(*left.pop())
        while (found := queue.next_piece()) is not None:
            under_way.append(found)
            sent[found.block].append(found)
            assert piece is None or found.stop - found.start <= piece
        total = sum(each.stop - each.start for each in under_way)
        assert total == queue.bytes_under_way
        assert total <= window or len(under_way) == 1
        if under_way:
            block, destination, start, stop = under_way.pop(rng.randrange(len(under_way)))
            arrived = queue.received(block, stop - start)
            if arrived is not None:
                assert arrived == destination
                complete[block] = arrived
    for number, (destination, num_bytes) in enumerate(blocks):
        assert complete[number] == destination
        stops = [each.stop for each in sent[number]]
        assert [each.start for each in sent[number]] == [0, *stops[:-1]]
        assert stops[-1] == num_bytes
    assert queue.is_quiet


def test_destinations_take_turns() -> None:
    queue = MoveQueue(100, 10)
    queue.add(1, 7, 30)
    queue.add(2, 7, 10)
    queue.add(3, 8, 20)
    pieces = [queue.next_piece() for _ in range(7)]
    assert [each and each.block for each in pieces] == [1, 3, 1, 3, 1, 2, None]


def test_what_is_held_is_sent_later() -> None:
    queue = MoveQueue(100, None)
    queue.add(1, 7, 30)
    queue.hold()
    assert queue.next_piece() is None
    queue.go_on()
    assert queue.next_piece() == Segment(1, 7, 0, 30)
    assert not queue.is_quiet


def test_a_link_carries_the_window_in_the_time_that_a_turn_may_wait() -> None:
    assert queue_of_link(1e6, cuts=True) == MoveQueue(round(1e6 * WINDOW_S), round(1e6 * WINDOW_S / 2))
    assert queue_of_link(None, cuts=False) == MoveQueue(WINDOW_BYTES, None)


def test_what_cannot_be_is_an_error() -> None:
    with pytest.raises(HpcbalError, match="a window of 0 bytes"):
        MoveQueue(0, 1)
    queue = MoveQueue(10, 10)
    with pytest.raises(HpcbalError, match="block 1 of 0 bytes"):
        queue.add(1, 7, 0)
    queue.add(1, 7, 20)
    with pytest.raises(HpcbalError, match="block 1 of 20 bytes"):
        queue.add(1, 8, 20)
    queue.next_piece()
    with pytest.raises(HpcbalError, match="11 bytes of block 1"):
        queue.received(1, 11)
