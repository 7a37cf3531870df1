"""Frames between threads do what those over MPI do."""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcbal.paramserver.engine.loopback_transport import LoopbackTransport
from hpcbal.paramserver.engine.wire import Lane, Segments

PROGRAMS = Path(__file__).resolve().parents[3] / "mpi" / "programs"
TIMEOUT_S = 60.0


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_loopback_transport_keeps_the_contract(monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    contract = importlib.import_module("transport_contract")
    transports = LoopbackTransport.connect(num_ranks)
    barrier = threading.Barrier(num_ranks, timeout=TIMEOUT_S)

    def play(rank: int) -> None:
        contract.check_transport(transports[rank], barrier.wait)
        transports[rank].close()

    with ThreadPoolExecutor(num_ranks) as threads:
        list(threads.map(play, range(num_ranks), timeout=TIMEOUT_S))


HEADER = np.zeros(1, np.int64)


def test_a_payload_stays_lent_until_it_is_received() -> None:
    sender, receiver = LoopbackTransport.connect(2)
    receiver.open(lambda header: None)
    values, there, sent = np.ones(4), np.zeros(4), list[bool]()
    sender.send(1, Lane.PULLED, HEADER, Segments([values]), lambda: sent.append(True))
    sender.poll()
    assert not sent
    receiver.receive(0, Lane.PULLED, Segments([there]), ignore)
    receiver.poll()
    sender.poll()
    assert sent
    assert there.tolist() == [1.0] * 4


def test_a_payload_that_is_received_while_its_sender_looks_is_noticed() -> None:
    """The receiver's thread takes the second one just after the sender has looked at it."""
    sender, receiver = LoopbackTransport.connect(2)
    receiver.open(lambda header: None)
    sent: list[Lane] = []
    for lane in (Lane(3), Lane(4)):
        sender.send(1, lane, HEADER, Segments([np.ones(4)]), partial(sent.append, lane))
    receiver.receive(0, Lane(3), Segments([np.zeros(4)]), ignore)
    receiver.poll()

    class Sending(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from list.__iter__(self)
            receiver.receive(0, Lane(4), Segments([np.zeros(4)]), ignore)
            receiver.poll()

    sender.sending = Sending(sender.sending)
    sender.poll()
    sender.poll()
    assert sent == [Lane(3), Lane(4)]


def test_a_payload_of_another_size_is_an_error() -> None:
    sender, receiver = LoopbackTransport.connect(2)
    sender.send(1, Lane.PULLED, HEADER, Segments([np.ones(4)]))
    receiver.receive(0, Lane.PULLED, Segments([np.ones(3)]), ignore)
    with pytest.raises(ValueError, match="32 bytes were sent, but 24 are expected"):
        receiver.poll()


def ignore() -> None:
    pass


def test_neighbours_in_memory_are_one_run() -> None:
    values = np.arange(10.0)
    assert len(Segments([values[:4], values[4:]]).runs) == 1
    assert len(Segments([values[4:], values[:4]]).runs) == 2
    assert Segments([values[:0]]).runs == ()
    with pytest.raises(ValueError, match="not contiguous"):
        Segments([values[::2]])
