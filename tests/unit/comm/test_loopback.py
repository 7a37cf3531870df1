"""Channels and group collectives between threads do what those over MPI do."""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from loopback import (
    LoopbackChannel,
    LoopbackGroupComm,
    Meeting,
    MeetingAbortedError,
    MeetingTimeoutError,
)

from hpcbal.comm.channel import Message
from hpcbal.comm.group_comm import AloneComm

PROGRAMS = Path(__file__).resolve().parents[2] / "mpi" / "programs"
TIMEOUT_S = 60.0


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program under tests/mpi runs the same checks over MPI."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("channel_contract")


def on_threads(num_ranks: int, play: Callable[[int], Any]) -> list[Any]:
    """Call `play` on a thread for each rank; return its results by rank."""
    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(play, range(num_ranks), timeout=TIMEOUT_S))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_loopback_channel_keeps_the_contract(contract: ModuleType, num_ranks: int) -> None:
    channels = LoopbackChannel.connect(num_ranks)
    assert [(channel.rank, channel.size) for channel in channels] == [
        (rank, num_ranks) for rank in range(num_ranks)
    ]
    barrier = threading.Barrier(num_ranks, timeout=TIMEOUT_S)

    def play(rank: int) -> None:
        contract.check_channel(channels[rank], barrier.wait)

    on_threads(num_ranks, play)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_loopback_group_keeps_the_contract(contract: ModuleType, num_ranks: int) -> None:
    meeting = Meeting(num_ranks, TIMEOUT_S)
    on_threads(num_ranks, lambda rank: contract.check_group_comm(LoopbackGroupComm(rank, meeting)))


@dataclass(frozen=True, slots=True)
class Note(Message):
    """A message that may hold anything."""

    what: Any


def test_the_receiver_gets_a_copy() -> None:
    sender, receiver = LoopbackChannel.connect(2)
    words = ["first"]
    sender.send(1, Note(words))
    words.append("second")
    found = receiver.receive()
    assert found is not None
    assert found == (0, Note(["first"]))
    assert receiver.receive() is None


def test_what_cannot_be_pickled_cannot_be_sent() -> None:
    sender, receiver = LoopbackChannel.connect(2)
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        sender.send(1, Note(threading.Lock()))
    assert receiver.receive() is None


def test_a_rank_that_never_comes_is_named() -> None:
    comm = LoopbackGroupComm(1, Meeting(3, timeout_s=0.0))
    with pytest.raises(MeetingTimeoutError, match=r"rank 1 .* for ranks \[0, 2\]"):
        comm.all_gather(np.zeros(1))


def test_a_poll_may_end_the_wait_for_others() -> None:
    comm = LoopbackGroupComm(0, Meeting(2, TIMEOUT_S))

    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        comm.all_gather(np.zeros(1), give_up)


def test_an_abort_ends_the_waits_of_all_and_of_those_who_come_later() -> None:
    meeting = Meeting(3, TIMEOUT_S)

    def play(rank: int) -> None:
        if rank == 2:
            meeting.abort()
        with pytest.raises(MeetingAbortedError, match=f"rank {rank} "):
            LoopbackGroupComm(rank, meeting).all_gather(np.zeros(1))

    on_threads(2, lambda number: play(number + 1))


def test_a_group_of_one_waits_for_nobody() -> None:
    comm = AloneComm()
    assert (comm.rank, comm.size) == (0, 1)
    assert comm.all_gather(np.array([3.0])).tolist() == [[3.0]]


def test_a_flush_ends_when_the_messages_have_left_and_says_that_it_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """MPI still reads the memory of messages that are being sent, so the channel must not be dropped."""

    class Slow(LoopbackChannel):
        polls = 0

        def is_sent(self) -> bool:
            self.polls += 1
            return self.polls > 50

    channel = Slow(3, [deque()])
    channel.flush(0.0)
    assert channel.is_sent()
    assert channel.polls > 50
    assert [record.getMessage() for record in caplog.records] == [
        "rank 3 waits for its last messages to leave: a rank has received nothing for 0 s"
    ]
