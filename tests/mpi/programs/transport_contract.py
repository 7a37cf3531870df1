"""The contract of every `Transport` of the parameter servers; run by all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hpcbal.comm.backoff import Backoff
from hpcbal.paramserver.engine.wire import Header, Lane, Segments, Transport

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
    over: list[tuple[str, int, int]] = []

    def on_header(header: Header) -> None:
        source, number, size = header[:3].tolist()
        values = np.zeros(size, np.int64)
        received.append((source, number, values))
        if size:
            done = partial(over.append, ("received", source, number))
            transport.receive(source, Lane(2 + number % 2), Segments([values]), done)

    transport.open(on_header)
    barrier()
    for number in range(NUM_FRAMES):
        size = SIZES[number % len(SIZES)] if number % 5 else 0
        for destination in range(transport.size):
            header = np.array([transport.rank, number, size], np.int64)
            payload = Segments(_pieces(transport.rank, number, size)) if size else None
            done = partial(over.append, ("sent", destination, number))
            transport.send(destination, Lane(2 + number % 2), header, payload, done)
    wait(transport, lambda: len(received) == NUM_FRAMES * transport.size and not transport.num_active)
    for source in range(transport.size):
        assert [number for rank, number, _ in received if rank == source] == list(range(NUM_FRAMES))
    for source, number, values in received:
        np.testing.assert_array_equal(values, _values(source, number, len(values)))
    numbers = [(rank, number) for rank in range(transport.size) for number in range(NUM_FRAMES)]
    assert sorted(key[1:] for key in over if key[0] == "sent") == numbers
    with_payload = [(source, number) for source, number, values in received if len(values)]
    assert sorted(key[1:] for key in over if key[0] == "received") == sorted(with_payload)
    barrier()


def _values(rank: int, number: int, size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int64) + 1000 * number + 10**6 * rank


def _pieces(rank: int, number: int, size: int) -> list[np.ndarray]:
    """The values in up to three arrays, two of which are neighbours in memory."""
    values = _values(rank, number, size)
    first, second = size // 3, size // 2
    return [values[:first], values[first:second], values[second:].copy()]
