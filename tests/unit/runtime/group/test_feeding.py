"""Every position of a pass reaches one rank, whatever the shares; they are fixed at known moments."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.runtime.group.feeding import Feeder, Step, StreamBatches

NUM_TRAIN, NUM_POSITIONS, BATCH_SIZE, RANKS = 25, 32, 8, 3
SPEC = StreamSpec(
    NUM_TRAIN, NUM_POSITIONS, 8, SampleSpec.of((2,), "float64"), LabelSpec((), "int64"), ring_bytes=2**20
)


class Positions:
    """A stream whose sample at each position is the position."""

    def set_poll(self, poll: object) -> None:
        """Nothing is waited for."""

    def count_valid(self, pass_index: int, start: int, stop: int) -> int:
        return stop - start

    def read(self, pass_index: int, start: int, stop: int, out: np.ndarray[Any, Any]) -> Batch:
        ids = np.arange(start, stop)
        out[: len(ids)] = ids[:, None]
        return Batch(ids, out[: len(ids)], ids)

    def release(self, pass_index: int, stop: int) -> None:
        """Nothing is kept."""


class Turning(EvenSplit):
    """All samples to one rank, in turn; `turn` moves on with every step that has ended."""

    def __init__(self, is_fresh: bool) -> None:
        super().__init__(RANKS)
        self.is_fresh = is_fresh
        self.turn = 0

    def split(self, num_samples: int) -> tuple[int, ...]:
        shares = [0] * RANKS
        shares[self.turn % RANKS] = num_samples
        return tuple(shares)


def steps_of(rank: int, is_fresh: bool, executor: Executor | None) -> Iterator[Step]:
    balancer = Turning(is_fresh)
    reader = cast(StreamReader, Positions())
    batches = StreamBatches(SPEC, reader, BATCH_SIZE, rank, balancer)
    feeder = Feeder(SPEC, batches, BATCH_SIZE, executor, poll=lambda: None)
    for step in feeder.steps(0, 0):
        yield step
        balancer.turn += 1


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("is_fresh", "turns"), [(True, [0, 1, 2, 3, 4]), (False, [0, 0, 1, 2, 3])])
def test_positions_and_moments(ahead: bool, is_fresh: bool, turns: list[int]) -> None:
    """Steps end at the last training sample; shares lag a step unless fresh, fetched ahead or not."""
    seen: list[int] = []
    for rank in range(RANKS):
        with ThreadPoolExecutor(1) as executor:
            for number, step in enumerate(steps_of(rank, is_fresh, executor if ahead else None)):
                holder = turns[number] % RANKS
                assert step.shares[holder] == step.end - step.start
                assert len(step.batch.ids) == (step.end - step.start if rank == holder else 0)
                np.testing.assert_array_equal(np.asarray(step.batch.x)[:, 0], step.batch.ids)
                seen += step.batch.ids.tolist()
            assert number + 1 == len(turns)
    assert sorted(seen) == list(range(NUM_POSITIONS))


@pytest.mark.parametrize(
    ("is_fresh", "has_thread"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_what_a_rank_preprocesses_itself_is_work_unless_it_computes_meanwhile(
    is_fresh: bool, has_thread: bool
) -> None:
    batches = StreamBatches(SPEC, cast(StreamReader, Positions()), BATCH_SIZE, 0, Turning(is_fresh))
    with ThreadPoolExecutor(1) as executor:
        feeder = Feeder(SPEC, batches, BATCH_SIZE, executor if has_thread else None, poll=lambda: None)
        step = next(feeder.steps(0, 0))
    assert feeder.worked_s(step, 2.0) == 2.0, "preprocessors have made it"
    own = replace(step, preprocessing_s=4.0)
    is_ahead = has_thread and not is_fresh
    assert feeder.worked_s(own, 2.0) == (4.0 if is_ahead else 6.0)
    assert feeder.worked_s(own, 5.0) == (5.0 if is_ahead else 9.0)
