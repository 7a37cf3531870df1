"""Every position of a pass reaches one rank, whatever the shares; they are fixed at known moments."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.selection import Selection, StepShares
from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.feeding import Feeder, StreamBatches

NUM_TRAIN, NUM_POSITIONS, BATCH_SIZE, RANKS = 25, 32, 8, 3
SPEC = StreamSpec(
    NUM_TRAIN, NUM_POSITIONS, 8, SampleSpec.of((2,), "float64"), LabelSpec((), "int64"), ring_bytes=2**20
)


class Positions:
    """A stream whose sample at each position is the position; it forgets what is released.

    Args:
        lends: whether samples are read in place.
    """

    def __init__(self, lends: bool = False) -> None:
        self.lends = lends
        self.memory = np.repeat(np.arange(float(NUM_POSITIONS))[:, None], 2, axis=1)
        self.released = 0

    def can_lend(self, num_samples: int) -> bool:
        return self.lends

    def bytes_to_lend(self, num_samples: int) -> int:
        return 1000 * num_samples

    def set_poll(self, poll: object) -> None:
        """Nothing is waited for."""

    def count_valid(self, pass_index: int, start: int, stop: int) -> int:
        return stop - start

    def read_selection(
        self, pass_index: int, selection: Selection, out: np.ndarray[Any, Any], *, in_place: bool
    ) -> Batch:
        ids = selection.positions
        assert in_place is self.lends
        if in_place and selection.picked is None:
            return Batch(ids, self.memory[selection.start : selection.stop], ids)
        out[: len(ids)] = ids[:, None]
        return Batch(ids, out[: len(ids)], ids)

    def release(self, pass_index: int, stop: int) -> None:
        self.memory[self.released : stop] = np.nan
        self.released = stop


class Turning(EvenSplit):
    """All samples to one rank, in turn; `turn` moves on with every step that has ended."""

    def __init__(self, plans_ahead: bool) -> None:
        super().__init__(RANKS)
        self.plans_ahead = self.usually_ahead = plans_ahead
        self.turn = 0

    def _split(self, num_samples: int) -> tuple[int, ...]:
        shares = [0] * RANKS
        shares[self.turn % RANKS] = num_samples
        return tuple(shares)


class Scattered(EvenSplit):
    """Every position to a rank by its number, not by its place."""

    def deal(self, start: int, end: int) -> StepShares:
        return StepShares.dealt(start, np.arange(start, end) * 5 % 7 % RANKS, RANKS)


def steps_of(rank: int, plans_ahead: bool, executor: Executor | None, lends: bool) -> Iterator[Step]:
    balancer = Turning(plans_ahead)
    reader = cast(StreamReader, Positions(lends))
    batches = StreamBatches(SPEC, reader, BATCH_SIZE, rank, balancer)
    feeder = Feeder(SPEC, batches, BATCH_SIZE, executor, poll=lambda: None)
    for step in feeder.steps(0, 0):
        yield step
        balancer.turn += 1


@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("plans_ahead", "turns"), [(False, [0, 1, 2, 3, 4]), (True, [0, 0, 1, 2, 3])])
def test_positions_and_moments(ahead: bool, plans_ahead: bool, turns: list[int], lends: bool) -> None:
    """Steps end at the last training sample; shares lag a step if planned ahead, fetched ahead or not.

    Their samples are there until the next step, where they are read in place, too.
    """
    seen: list[int] = []
    for rank in range(RANKS):
        with ThreadPoolExecutor(1) as executor:
            for number, step in enumerate(steps_of(rank, plans_ahead, executor if ahead else None, lends)):
                if ahead:
                    executor.submit(int).result()  # the next batch has been fetched
                holder = turns[number] % RANKS
                assert step.shares.counts[holder] == step.end - step.start
                assert len(step.batch.ids) == (step.end - step.start if rank == holder else 0)
                np.testing.assert_array_equal(np.asarray(step.batch.x)[:, 0], step.batch.ids)
                seen += step.batch.ids.tolist()
            assert number + 1 == len(turns)
    assert sorted(seen) == list(range(NUM_POSITIONS))


def test_a_timeout_of_the_fetch_itself_ends_the_wait() -> None:
    """Python has one class for it and for a poll that ended without a batch."""

    class Late(Positions):
        def count_valid(self, pass_index: int, start: int, stop: int) -> int:
            raise TimeoutError("the file server did not answer")

    def poll() -> None:
        assert next(polls) < 100, "the wait goes on"

    polls = itertools.count()
    batches = StreamBatches(SPEC, cast(StreamReader, Late()), BATCH_SIZE, 0, EvenSplit(RANKS))
    with ThreadPoolExecutor(1) as executor, pytest.raises(TimeoutError, match="file server"):
        next(Feeder(SPEC, batches, BATCH_SIZE, executor, poll).steps(0, 0))


def test_samples_that_are_no_neighbours_reach_one_rank_each() -> None:
    seen: list[int] = []
    for rank in range(RANKS):
        batches = StreamBatches(SPEC, cast(StreamReader, Positions()), BATCH_SIZE, rank, Scattered(RANKS))
        for step in Feeder(SPEC, batches, BATCH_SIZE, None, poll=lambda: None).steps(0, 0):
            own = step.batch.ids
            assert (own * 5 % 7 % RANKS == rank).all()
            np.testing.assert_array_equal(np.asarray(step.batch.x)[:, 0], own)
            seen += own.tolist()
    assert sorted(seen) == list(range(NUM_POSITIONS))


def test_steps_that_wait_for_decisions_are_planned_when_the_one_before_has_ended() -> None:
    """From the third step on they do not wait any more: its shares, and the fourth's, are then planned."""
    balancer = Turning(plans_ahead=False)
    batches = StreamBatches(SPEC, cast(StreamReader, Positions()), BATCH_SIZE, 0, balancer)
    turns = []
    for step in Feeder(SPEC, batches, BATCH_SIZE, None, poll=lambda: None).steps(0, 0):
        turns.append(step.shares.counts.index(max(step.shares.counts)))
        balancer.turn += 1
        balancer.plans_ahead = balancer.turn >= 2
    assert turns == [0, 1, 2, 2, 0]


@pytest.mark.parametrize(
    ("usually_ahead", "has_thread"), [(False, True), (False, False), (True, True), (True, False)]
)
def test_what_a_rank_preprocesses_itself_is_work_unless_it_computes_meanwhile(
    usually_ahead: bool, has_thread: bool
) -> None:
    batches = StreamBatches(SPEC, cast(StreamReader, Positions()), BATCH_SIZE, 0, Turning(usually_ahead))
    with ThreadPoolExecutor(1) as executor:
        feeder = Feeder(SPEC, batches, BATCH_SIZE, executor if has_thread else None, poll=lambda: None)
        step = next(feeder.steps(0, 0))
    assert step.worked_s(2.0) == 2.0, "preprocessors have made it"
    own = replace(step, preprocessing_s=4.0)
    is_ahead = has_thread and usually_ahead
    assert own.worked_s(2.0) == (4.0 if is_ahead else 6.0)
    assert own.worked_s(5.0) == (5.0 if is_ahead else 9.0)


def test_a_ring_that_is_too_small_to_read_in_place_is_logged_with_the_size_that_would_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        StreamBatches(SPEC, cast(StreamReader, Positions(True)), BATCH_SIZE, 0, Turning(False))
        assert caplog.text == ""
        StreamBatches(SPEC, cast(StreamReader, Positions(False)), BATCH_SIZE, 0, Turning(False))
    assert "batches of 8 samples are copied out of the ring; dataplane.ring_bytes: 8000 would" in caplog.text
