"""The contract of every `Channel` and every `GroupComm`, over any transport; run by all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hpcbal.comm.channel import Channel
from hpcbal.comm.group_comm import GroupComm, PieceExchange
from hpcbal.events.ensemble import DnnFailed
from hpcbal.runtime.wire.protocol import Happened, Heartbeat, Shutdown

NUM_MESSAGES = 200
NUM_PIECES = 12


def check_order_and_size(channel: Channel) -> None:
    """All messages of each rank arrive in the order of sending, long ones among short ones."""
    if channel.rank:
        for number in range(NUM_MESSAGES):
            detail = "x" * (300_000 if number % 50 == 0 else 10)
            channel.send(0, Happened(number, DnnFailed(str(channel.rank), "error", detail)))
        channel.flush()
        assert channel.is_sent()
        channel.send(0, Shutdown(channel.rank))
        source, message = channel.wait()
        assert (source, message) == (0, Heartbeat(f"for {channel.rank}"))
        return
    serials: dict[int, list[int]] = {rank: [] for rank in range(1, channel.size)}
    open_ranks = set(serials)
    while open_ranks:
        source, message = channel.wait()
        if isinstance(message, Shutdown):
            assert message.exit_code == source
            open_ranks.remove(source)
        else:
            assert isinstance(message, Happened)
            assert isinstance(message.event, DnnFailed)
            assert message.event.dnn_id == str(source)
            assert len(message.event.detail) == (300_000 if message.serial % 50 == 0 else 10)
            serials[source].append(message.serial)
    assert all(found == list(range(NUM_MESSAGES)) for found in serials.values()), serials
    for rank in serials:
        channel.send(rank, Heartbeat(f"for {rank}"))
    channel.flush()
    assert channel.is_sent()
    assert channel.receive() is None


def check_one_for_all(channel: Channel, barrier: Callable[[], None]) -> None:
    """Every rank sends to all others at once; each gets a value of its own from each other rank."""
    others = [rank for rank in range(channel.size) if rank != channel.rank]
    sent = Happened(channel.rank, DnnFailed("a", "error", "", channel.rank))
    channel.send_to_all(others, sent)
    received = dict(channel.wait() for _ in others)
    assert sorted(received) == others
    for source, message in received.items():
        assert message == Happened(source, DnnFailed("a", "error", "", source))
        assert message is not sent
    channel.flush()
    assert channel.is_sent()
    barrier()
    assert channel.receive() is None


def check_way_out(channel: Channel) -> None:
    """A function that runs meanwhile may end a wait."""
    polls = 0

    def meanwhile() -> None:
        nonlocal polls
        polls += 1
        if polls == 20:
            raise InterruptedError

    try:
        channel.wait(meanwhile)
    except InterruptedError:
        assert polls == 20
    else:
        raise AssertionError("nothing was sent, but something came")


def check_channel(channel: Channel, barrier: Callable[[], None]) -> None:
    """The whole contract of a channel that nothing else uses.

    Args:
        channel: this rank's end.
        barrier: waits for all ranks.
    """
    check_order_and_size(channel)
    barrier()
    check_one_for_all(channel, barrier)
    check_way_out(channel)
    barrier()


def check_group_comm(comm: GroupComm) -> None:
    """The whole contract of a group's small collectives."""
    everyone = np.arange(comm.size)
    for number in range(20):
        gathered = comm.all_gather(np.array([comm.rank, number]))
        np.testing.assert_array_equal(gathered, np.stack([everyone, np.full(comm.size, number)], axis=1))
    polls: list[int] = []
    flags = comm.all_gather(np.array(comm.rank == 0, np.uint8), lambda: polls.append(1))
    assert flags.tolist() == [1] + [0] * (comm.size - 1)
    own = np.array([[comm.rank, -comm.rank]], np.int64)
    most = comm.size - 1
    assert comm.all_reduce(own, "sum").tolist() == [[sum(everyone), -sum(everyone)]]
    assert comm.all_reduce(own, "min").tolist() == [[0, -most]]
    assert comm.all_reduce(own, "max").tolist() == [[most, 0]]
    assert own.tolist() == [[comm.rank, -comm.rank]], "the input was changed"
    array = np.arange(6.0) * (comm.rank + 1)
    comm.broadcast(array)
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    array += comm.rank  # a value of its own
    assert comm.all_gather(array)[:, 0].tolist() == everyone.tolist()
    check_pieces(comm.open_pieces())


def check_pieces(pieces: PieceExchange) -> None:
    """The whole contract of an exchange of pieces: their order, one at a time, copies, and numbers."""
    others = [rank for rank in range(pieces.size) if rank != pieces.rank]
    received: dict[int, list[int]] = {rank: [] for rank in others}
    next_number = dict.fromkeys(others, 0)
    while min([*map(len, received.values()), *next_number.values(), NUM_PIECES]) < NUM_PIECES:
        for rank in others:
            if next_number[rank] < NUM_PIECES and pieces.is_free(rank):
                length = 200_000 if next_number[rank] % 5 == 0 else next_number[rank]
                pieces.send(rank, np.full(length, next_number[rank], np.uint8))
                next_number[rank] += 1
            piece = pieces.receive(rank)
            if piece is not None:
                number = len(received[rank])
                assert piece.tolist() == [number] * (200_000 if number % 5 == 0 else number)
                piece += 1  # it is the receiver's own
                received[rank].append(number)
        time.sleep(1e-4)
    given = pieces.exchange_numbers(10 * pieces.rank + np.arange(pieces.size), lambda: None)
    assert given.tolist() == [10 * rank + pieces.rank for rank in range(pieces.size)]
    while not all(pieces.is_free(rank) for rank in others):
        time.sleep(1e-4)
    assert [pieces.receive(rank) for rank in others] == [None] * len(others)
    pieces.close()
