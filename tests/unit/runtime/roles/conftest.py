"""Trainers and a preprocessor in threads; the test gives the scheduler's orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.comm.channel import Message
from hpcbal.dataplane.stream import StreamPlan
from hpcbal.events.ensemble import CheckpointWritten, Event, GroupPlan, RoundPlan
from hpcbal.events.history import Position
from hpcbal.runtime.wire.protocol import (
    EndStream,
    Happened,
    OpenGroups,
    ReaderReady,
    Shutdown,
    StartStream,
    StreamEnded,
)

PREPROCESSOR = 1


class Floor:
    """Trainers, and a preprocessor, whose scheduler is the test."""

    def __init__(self, ranks: Any, *, fetches_ahead: bool) -> None:
        self.ranks = ranks
        self.channel = ranks.channels[0]
        self.trainers = list(ranks.roles.trainer_ranks)
        self._generation = 0
        ranks.play(PREPROCESSOR, ranks.preprocessor(PREPROCESSOR).run)
        for rank in self.trainers:
            ranks.play(rank, ranks.trainer(rank, fetches_ahead=fetches_ahead).run)

    @staticmethod
    def plan_of(
        *groups: GroupPlan,
        start: Mapping[str, Position] | None = None,
        epochs: int = 0,
        has_rates: bool = True,
    ) -> RoundPlan:
        """A round of these groups, from the beginning or from `start` on."""
        names = [group.dnn_id for group in groups]
        starts = {name: Position(0) for name in names} | dict(start or {})
        first_pass = min(position.pass_index for position in starts.values())
        rates = dict.fromkeys(names, 100.0) if has_rates else {}
        measures = () if has_rates else tuple(names)
        return RoundPlan(
            0, groups, first_pass, starts, dict.fromkeys(names, epochs), 1, rates, measures=measures
        )

    @property
    def num_positions(self) -> int:
        return int(self.ranks.facts.spec.num_positions)

    def next_of(self, *kinds: type[Message]) -> tuple[int, Any]:
        """The next message of one of `kinds`, and who sent it; others are passed over."""
        while True:
            source, message = self.channel.wait(lambda: self.ranks.contexts[0].stop.take())
            if isinstance(message, kinds):
                return source, message

    def event(self) -> Event:
        """The next event that a master reports; a checkpoint without its cost, which differs each time."""
        event: Event = self.next_of(Happened)[1].event
        if isinstance(event, CheckpointWritten):
            assert event.seconds > 0.0
            return replace(event, seconds=0.0, held_s=0.0)
        return event

    def open(self, serial: int, groups: tuple[GroupPlan, ...], plan: RoundPlan | None) -> None:
        """Form groups; the stream before is ended, and the new one starts when all trainers are ready."""
        if self._generation:
            self.channel.send(PREPROCESSOR, EndStream(self._generation))
            assert self.next_of(StreamEnded) == (PREPROCESSOR, StreamEnded(self._generation))
        self._generation = serial
        first_pass = 0 if plan is None else plan.first_pass
        stream = StreamPlan(serial, first_pass, 0, producers=(PREPROCESSOR,), training_nodes=(0,))
        self.channel.send_to_all(self.trainers, OpenGroups(serial, groups, stream, plan))
        assert sorted(self.next_of(ReaderReady)[0] for _ in self.trainers) == self.trainers
        self.channel.send(PREPROCESSOR, StartStream(stream))

    def order(self, message: Message, *slots: int) -> None:
        """Send to the trainers of these slots."""
        self.channel.send_to_all([self.ranks.roles.trainer_ranks[slot] for slot in slots], message)

    def end(self, code: int = 0) -> None:
        self.channel.send_to_all([PREPROCESSOR, *self.trainers], Shutdown(code))
        self.ranks.join()
        assert set(self.ranks.codes.values()) == {code}

    def checkpoint(self, dnn_id: str) -> Any:
        state, warnings = read_checkpoint(self.ranks.contexts[0].dnn_directory(dnn_id))
        assert not warnings
        return state


@pytest.fixture
def floor(make_ranks: Callable[..., Any]) -> Callable[..., Floor]:
    """Makes trainers for so many slots, which wait for orders."""

    def make(num_slots: int, *, fetches_ahead: bool = True, **sections: Any) -> Floor:
        return Floor(make_ranks(num_slots, **sections), fetches_ahead=fetches_ahead)

    return make
