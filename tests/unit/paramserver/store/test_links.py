"""Links that carry one message after the other in each direction, and cut through; links that are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.store.links import Link, SharedLinks, max_min_rates

MS = 1_000_000
RANKS = st.integers(0, 3)


@dataclass(frozen=True)
class Message:
    at_ms: int
    source: int
    destination: int
    num_bytes: int


def replay(messages: list[Message], bytes_per_ms: list[int]) -> list[float]:
    """When each message arrives, in ms: events in the order of time, as the simulator runs links."""
    links: list[Link[int]] = [Link(1e3 * speed) for speed in bytes_per_ms]
    arrivals = [-1.0] * len(messages)
    unsent = sorted(range(len(messages)), key=lambda i: messages[i].at_ms)
    while True:
        times = [time for link in links if (time := link.next_ns) is not None]
        times += [messages[unsent[0]].at_ms * MS] if unsent else []
        if not times:
            return arrivals
        now_ns = min(times)
        while unsent and messages[unsent[0]].at_ms * MS <= now_ns:
            number = unsent.pop(0)
            message = messages[number]
            start_ns, end_ns = links[message.source].leave(now_ns, message.num_bytes)
            links[message.destination].announce(number, message.num_bytes, start_ns, end_ns)
        for link in links:
            for number in link.arrived(now_ns):
                assert arrivals[number] == -1
                arrivals[number] = now_ns / MS


def step_by_step(messages: list[Message], bytes_per_ms: list[int]) -> list[float]:
    """The same, ms by ms: each direction of a link carries bytes of the first message in its line.

    Exact if every message takes whole ms on every link.
    """
    sent, carried = [0] * len(messages), [0] * len(messages)
    arrivals = [-1.0] * len(messages)
    up: list[list[int]] = [[] for _ in bytes_per_ms]
    down: list[list[int]] = [[] for _ in bytes_per_ms]
    unsent = sorted(range(len(messages)), key=lambda i: messages[i].at_ms)
    now_ms = 0
    while -1.0 in arrivals:
        while unsent and messages[unsent[0]].at_ms == now_ms:
            up[messages[unsent[0]].source].append(unsent.pop(0))
        starting = [queue[0] for queue in up if queue and sent[queue[0]] == 0]
        for number in sorted(starting, key=lambda i: (messages[i].at_ms, i)):
            down[messages[number].destination].append(number)
        for queues, moved in ((up, sent), (down, carried)):
            for rank, queue in enumerate(queues):
                if queue:
                    moved[queue[0]] += bytes_per_ms[rank]
                    if moved[queue[0]] == messages[queue[0]].num_bytes:
                        queue.pop(0)
        now_ms += 1
        for number, message in enumerate(messages):
            if arrivals[number] == -1 and min(sent[number], carried[number]) == message.num_bytes:
                arrivals[number] = now_ms
    return arrivals


SPEEDS = [1, 2, 4, 8]
traffic = st.lists(
    st.builds(
        Message,
        at_ms=st.integers(0, 20),
        source=st.integers(0, 3),
        destination=st.integers(0, 3),
        num_bytes=st.sampled_from([8, 16, 24, 64]),
    ).filter(lambda message: message.source != message.destination),
    min_size=1,
    max_size=12,
)


@given(traffic)
def test_the_arithmetic_agrees_with_a_simulation_in_small_steps(messages: list[Message]) -> None:
    assert replay(messages, SPEEDS) == step_by_step(messages, SPEEDS)


@given(traffic)
def test_no_link_carries_more_than_its_speed_allows(messages: list[Message]) -> None:
    arrivals = replay(messages, SPEEDS)
    for rank, speed in enumerate(SPEEDS):
        for end in ("source", "destination"):
            here = [(m.at_ms, t, m.num_bytes) for m, t in zip(messages, arrivals, strict=True)
                    if getattr(m, end) == rank]  # fmt: skip
            for first_ms, _, _ in here:
                for _, last_ms, _ in here:
                    num_bytes = sum(n for at, t, n in here if at >= first_ms and t <= last_ms)
                    assert num_bytes <= speed * max(0.0, last_ms - first_ms) + 1e-6


@given(traffic)
def test_messages_between_two_ranks_keep_their_order(messages: list[Message]) -> None:
    arrivals = replay(messages, SPEEDS)
    last: dict[tuple[int, int], float] = {}
    for number in sorted(range(len(messages)), key=lambda i: messages[i].at_ms):
        pair = messages[number].source, messages[number].destination
        assert arrivals[number] >= last.get(pair, 0.0)
        last[pair] = arrivals[number]


def test_a_message_cuts_through_and_takes_as_long_as_on_the_slower_link() -> None:
    assert replay([Message(0, 0, 3, 16)], SPEEDS) == [16]
    assert replay([Message(0, 3, 0, 16)], SPEEDS) == [16]


def test_all_that_one_rank_receives_shares_its_link() -> None:
    fan_in = [Message(0, source, 0, 8) for source in (1, 2, 3)]
    assert replay(fan_in, SPEEDS) == [8, 16, 24]


def test_a_message_that_waits_for_its_sender_holds_up_nobody_at_its_receiver() -> None:
    # Rank 0 sends to 2 for 64 ms before it sends to 3; meanwhile 3 receives from 2.
    messages = [Message(0, 0, 2, 64), Message(0, 0, 3, 8), Message(10, 2, 3, 8)]
    assert replay(messages, SPEEDS) == [64, 72, 12]


def test_a_link_needs_a_speed() -> None:
    for speed in (0.0, -1.0, float("inf")):
        with pytest.raises(HpcbalError, match="allowed: > 0"):
            Link[int](speed)


def share(messages: list[Message], bytes_per_ms: Sequence[float]) -> list[float]:
    """When each message arrives over shared links, in ms."""
    links = SharedLinks[int]({rank: 1e3 * speed for rank, speed in enumerate(bytes_per_ms)})
    arrivals = [-1.0] * len(messages)
    unsent = sorted(range(len(messages)), key=lambda i: messages[i].at_ms)
    while unsent or links.next_ns is not None:
        times = [] if links.next_ns is None else [links.next_ns]
        now_ns = min([*times, *(messages[number].at_ms * MS for number in unsent[:1])])
        for number in links.arrived(now_ns):
            arrivals[number] = now_ns / MS
        while unsent and messages[unsent[0]].at_ms * MS <= now_ns:
            number = unsent.pop(0)
            message = messages[number]
            links.send(now_ns, message.source, message.destination, message.num_bytes, number)
    return arrivals


@pytest.mark.parametrize(
    ("messages", "ends_ms"),
    [
        ([Message(0, 1, 0, 100), Message(0, 2, 0, 100)], [20, 20]),  # as was measured of MPI over TCP
        ([Message(0, 1, 0, 100), Message(0, 2, 0, 400)], [20, 50]),
        ([Message(0, 1, 0, 100), Message(5, 2, 0, 100)], [15, 20]),
        ([Message(0, 1, 0, 100), Message(0, 1, 0, 100)], [10, 20]),  # one stream
        ([Message(0, 1, 0, 100), Message(0, 0, 1, 100)], [10, 10]),  # each way
        # Ranks 1 to 3 fill the link of rank 0, so rank 1 has more for rank 4.
        ([*(Message(0, source, 0, 100) for source in (1, 2, 3)), Message(0, 1, 4, 100)], [30, 30, 30, 15]),
    ],
)
def test_streams_share_links_at_both_ends(messages: list[Message], ends_ms: list[float]) -> None:
    assert share(messages, [10, 10, 10, 10, 10]) == pytest.approx(ends_ms, abs=1e-5)


@given(
    st.lists(st.builds(Message, st.integers(0, 9), RANKS, RANKS, st.integers(1, 99)), min_size=1, max_size=9)
)
def test_shared_links_carry_all_they_can_and_keep_the_order_of_streams(messages: list[Message]) -> None:
    messages = [message for message in messages if message.source != message.destination]
    arrivals = share(messages, (1, 2, 3, 5))
    for number, message in enumerate(messages):
        assert arrivals[number] >= message.at_ms
        for later, other in enumerate(messages):
            is_behind = (other.at_ms, later) > (message.at_ms, number)
            if is_behind and (other.source, other.destination) == (message.source, message.destination):
                assert arrivals[later] >= arrivals[number]


@given(st.sets(st.tuples(RANKS, RANKS).filter(lambda ends: ends[0] != ends[1]), min_size=1))
def test_no_stream_can_be_faster_unless_one_that_is_no_faster_becomes_slower(
    streams: set[tuple[int, int]],
) -> None:
    speeds = {0: 1.0, 1: 2.0, 2: 3.0, 3: 5.0}
    rates = max_min_rates(streams, speeds)
    assert rates.keys() == streams
    for stream, rate in rates.items():
        fullest = 0
        for side in (0, 1):
            shared = [rates[other] for other in streams if other[side] == stream[side]]
            assert sum(shared) <= speeds[stream[side]] * (1 + 1e-9)
            is_full = sum(shared) >= speeds[stream[side]] * (1 - 1e-9)
            fullest += is_full and rate >= max(shared) * (1 - 1e-9)
        assert fullest
