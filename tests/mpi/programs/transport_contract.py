"""What every `Transport` of the parameter servers does, whatever carries it; run by all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hpcbal.comm.backoff import Backoff
from hpcbal.paramserver.engine.transport import Header, Lane, Segments, Transfer, Transport

NUM_FRAMES = 30
SIZES = (1, 100, 70_000)
"""Of payloads, in words: below MPI's eager limit, at it, and far above."""


def wait(transport: Transport, condition: Callable[[], bool]) -> None:
    backoff = Backoff()
    while not condition():
        if transport.poll():
            backoff.reset()
        else:
            backoff.wait()


def check_transport(transport: Transport, barrier: Callable[[], None]) -> None:
    """Every rank sends frames of all sizes to every rank; payloads are cut differently at both ends."""
    received: list[tuple[int, int, np.ndarray]] = []
    on_their_way: list[Transfer] = []

    def on_header(header: Header) -> None:
        source, number, size = header[:3].tolist()
        values = np.zeros(size, np.int64)
        received.append((source, number, values))
        if size:
            transfer = transport.incoming(source, Lane(2 + number % 2), Segments([values]))
            transfer.start()
            on_their_way.append(transfer)

    transport.open(on_header)
    barrier()
    for number in range(NUM_FRAMES):
        size = SIZES[number % len(SIZES)] if number % 5 else 0
        for destination in range(transport.size):
            header = np.array([transport.rank, number, size], np.int64)
            payload = Segments(_pieces(transport.rank, number, size)) if size else None
            transfer = transport.outgoing(destination, Lane(2 + number % 2), header, payload)
            transfer.start()
            on_their_way.append(transfer)
    wait(transport, lambda: len(received) == NUM_FRAMES * transport.size and not transport.num_active)
    for source in range(transport.size):
        assert [number for rank, number, _ in received if rank == source] == list(range(NUM_FRAMES))
    for source, number, values in received:
        np.testing.assert_array_equal(values, _values(source, number, len(values)))
    for transfer in on_their_way:
        assert transfer.is_done
        transfer.free()
    barrier()


def check_repeats(transport: Transport, barrier: Callable[[], None]) -> None:
    """A transfer carries what lies in its arrays at each start; a payload may come without a header."""
    if transport.size < 2:
        return
    values = np.zeros(1000)
    after: list[int] = []
    if transport.rank == 0:
        header = np.zeros(2, np.int64)
        sender = transport.outgoing(1, Lane.PULLED, None, Segments([values]))
        for number in range(10):
            values[:] = number
            header[1] = number
            sender.start(partial(after.append, number))
            wait(transport, lambda: sender.is_done)
        assert after == list(range(10))
        sender.free()
    if transport.rank == 1:
        receiver = transport.incoming(0, Lane.PULLED, Segments([values[500:], values[:500]]))
        for number in range(10):
            receiver.start()
            wait(transport, lambda: receiver.is_done)
            assert values.tolist() == [number] * 1000
        receiver.start(partial(after.append, -1))
        transport.poll()
        receiver.cancel()  # nothing comes
        assert receiver.is_done
        assert not transport.num_active
        assert not after
        receiver.free()
    barrier()


def _values(rank: int, number: int, size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int64) + 1000 * number + 10**6 * rank


def _pieces(rank: int, number: int, size: int) -> list[np.ndarray]:
    """The values in up to three arrays, two of which are neighbours in memory."""
    values = _values(rank, number, size)
    first, second = size // 3, size // 2
    return [values[:first], values[first:second], values[second:].copy()]
