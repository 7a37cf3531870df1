"""A group of threads splits its steps as the simulator says: same machine, same moments, same shares."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from hpcbal.control.splitting.machine import step_task
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.batching import BATCHING, BatchingPolicy
from hpcbal.policies.selection import Selection
from hpcbal.runtime.balance import decided_split
from hpcbal.runtime.balance.decided_split import DecidedSplit
from hpcbal.runtime.balance.step import Step, WorkerWatch
from hpcbal.runtime.group.epoch import train_balanced
from hpcbal.runtime.group.feeding import Feeder, StreamBatches
from hpcbal.simulator.step_pace import VirtualGroup
from hpcbal.training.backend import Contribution, Replica, Sums

SAMPLE_S = (0.004, 0.008, 0.008, 0.030)
LAUNCH_S = 0.002
NUM_TRAIN, NUM_POSITIONS, BATCH_SIZE = 40 * 64 - 24, 40 * 64 + 40, 64
SPEC = StreamSpec(
    NUM_TRAIN, NUM_POSITIONS, 8, SampleSpec.of((1,), "float64"), LabelSpec((), "int64"), ring_bytes=2**20
)
CHANGE_AT = 22  # the step from which rank 0 is slow


TIMEOUT_S = 60.0
T = TypeVar("T")
Array = np.ndarray[Any, Any]


class _Room:
    """Where the threads meet: each leaves something, and all get what the last one makes of it."""

    def __init__(self, size: int) -> None:
        self.left: list[Any] = [None] * size
        self.made: Any = None
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)

    def meet(self, rank: int, own: Any, make: Callable[[list[Any]], Any]) -> Any:
        self.left[rank] = own
        if self.barrier.wait() == 0:
            self.made = make(list(self.left))
        self.barrier.wait()
        made = self.made
        self.barrier.wait()
        return made


class ThreadCollective:
    """The collective of one thread's rank; see `hpcbal.training.backend.GradientCollective`."""

    def __init__(self, room: _Room, rank: int, size: int, *, meets: bool) -> None:
        self.rank, self.size, self.meets = rank, size, meets
        self._room = room

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        tensors_of, statuses = zip(*self._room.meet(self.rank, (tensors, status), list), strict=True)
        return [sum(several) for several in zip(*tensors_of, strict=True)], np.sum(statuses, axis=0)

    def exchange(self, numbers: Array) -> None:
        numbers[...] = self._room.meet(self.rank, numbers.copy(), lambda all_: np.sum(all_, axis=0))

    def tell(self, numbers: Array) -> None:
        numbers[...] = self._room.meet(self.rank, numbers.copy(), lambda all_: all_[0])

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        everyone = np.stack(self._room.meet(self.rank, numbers, list))
        answered = self._room.meet(
            self.rank, answer(everyone) if self.rank == 0 else None, lambda all_: all_[0]
        )
        assert answered.shape == (length,)
        return np.array(answered)

    def close(self) -> None:
        """Nothing to free."""


def in_group(size: int, work: Callable[[ThreadCollective], T], *, meets: bool = True) -> list[T]:
    """Call `work` on each rank of a group of threads, and return the results."""
    room = _Room(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, ThreadCollective(room, j, size, meets=meets)) for j in range(size)]
        return [future.result(TIMEOUT_S) for future in futures]


class Positions:
    """A stream whose sample at each position is the position."""

    def set_poll(self, poll: object) -> None:
        """Nothing is waited for."""

    def count_valid(self, pass_index: int, start: int, stop: int) -> int:
        return stop - start

    def can_lend(self, num_samples: int) -> bool:
        return False

    def bytes_to_lend(self, num_samples: int) -> None:
        """No ring would do."""

    def read_selection(
        self, pass_index: int, selection: Selection, out: np.ndarray[Any, Any], *, in_place: bool
    ) -> Batch:
        assert not in_place
        ids = selection.positions
        return Batch(ids, out[: len(ids)], ids)

    def release(self, pass_index: int, stop: int) -> None:
        """Nothing is kept."""


@dataclass
class NoNetwork:
    """A replica that adds up to nothing; computing takes longer than the decision beside it."""

    split: DecidedSplit
    broken: None = None
    num_states: int = 0
    exchange: None = None
    zeros_: list[np.ndarray[Any, Any]] = field(default_factory=lambda: [np.zeros(1)])

    def compute(self, batch: Any, num_samples_total: int, weight: float | None = None) -> Contribution:
        if self.split._pending is not None:
            self.split._pending.exception()
        return Contribution(self.zeros_, Sums(0.0, len(batch.ids)))

    def zeros(self) -> Contribution:
        return Contribution(self.zeros_, Sums())

    def apply(self, tensors: Sequence[Any]) -> None:
        """There are no weights."""


def seconds_of(rank: int, num_samples: int, step: int) -> float:
    factor = 4.0 if rank == 0 and step >= CHANGE_AT else 1.0
    return (LAUNCH_S + num_samples * SAMPLE_S[rank] * factor) if num_samples else 0.0


def shares_in_a_group(
    policy: BatchingPolicy[Any],
    *,
    meets: bool,
    deals_work: bool = False,
    monkeypatch: pytest.MonkeyPatch,
) -> list[list[tuple[int, ...]]]:
    """Shares of each training step of a pass, as each rank saw them; times are made up, threads are real."""

    def timed(step: Step, compute_s: float, watch: WorkerWatch) -> Any:
        """Return the rank's report as if it had computed for so long."""
        rank = next(j for j in range(len(SAMPLE_S)) if step.shares.of_rank(j) == Selection.of(step.batch.ids))
        seconds = seconds_of(rank, len(step.batch.ids), step.start // BATCH_SIZE)
        return report(step, seconds, watch)

    report = decided_split.report_of_rank
    monkeypatch.setattr(decided_split, "report_of_rank", timed)

    def train(collective: ThreadCollective) -> list[tuple[int, ...]]:
        split = DecidedSplit("a", policy, BATCH_SIZE, collective, deals_work=deals_work)
        split.start()
        batches = StreamBatches(SPEC, cast("StreamReader", Positions()), BATCH_SIZE, collective.rank, split)
        feeder = Feeder(SPEC, batches, BATCH_SIZE, None, poll=lambda: None)
        seen = []
        for step in feeder.steps(0, 0):
            if step.training:
                train_balanced(cast("Replica", NoNetwork(split)), step, batches, collective)
                seen.append(step.shares.counts)
        split.machine.check_invariants()
        split.close()
        return seen

    return in_group(len(SAMPLE_S), train, meets=meets)


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("name", ["fitted", "lb-bsp-gpu", "lb-bsp-cpu"])
def test_real_and_virtual_steps_are_split_alike(
    name: str, meets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = BATCHING[name]
    by_rank = shares_in_a_group(policy, meets=meets, monkeypatch=monkeypatch)
    assert all(seen == by_rank[0] for seen in by_rank)
    group = VirtualGroup(policy, step_task(BATCH_SIZE, len(SAMPLE_S)))
    sizes = [(64, True)] * 39 + [(40, True), (64, False)]
    counter = itertools.count()

    def seconds(shares: tuple[int, ...], training: bool) -> list[float]:
        number = next(counter)
        return [seconds_of(j, n, number) for j, n in enumerate(shares)]

    virtual = [step.shares for step in group.steps(sizes, seconds) if step.training]
    assert by_rank[0] == virtual
    assert len(set(virtual)) > 2


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("deals_work", [True, False])
def test_weights_travel_only_where_samples_differ_in_size(
    deals_work: bool, meets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[tuple[float, ...]] = []
    close = DecidedSplit.close

    def closed(split: DecidedSplit) -> None:
        weights.append(split.weights)
        close(split)

    monkeypatch.setattr(DecidedSplit, "close", closed)
    policy = BATCHING["fitted"]
    shares_in_a_group(policy, meets=meets, deals_work=deals_work, monkeypatch=monkeypatch)
    assert len(set(weights)) == 1  # on all ranks
    are_counts = all(weight.is_integer() for weight in weights[0])
    assert are_counts is not deals_work


def test_a_decision_that_fails_on_the_master_ends_balancing_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = BATCHING["fitted"]
    calls = itertools.count()

    def failing(state: Any, observations: Any) -> Any:
        if next(calls) == 3:
            raise ValueError("singular")
        return policy.decide(state, observations)

    broken = SimpleNamespace(
        start=policy.start, decide=failing, cadence=policy.cadence, learns_from_any_split=True
    )
    by_rank = shares_in_a_group(cast("Any", broken), meets=True, monkeypatch=monkeypatch)
    assert all(seen == by_rank[0] for seen in by_rank)
    assert len(set(by_rank[0][5:39])) == 1
    assert caplog.text.count("balancing stops and the shares stay as they are: ValueError('singular')") == 1


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("name", ["fitted", "lb-bsp-cpu", "lb-bsp-gpu"])
def test_a_rank_that_measures_nonsense_ends_balancing_and_leaves_no_rank_waiting(
    name: str, meets: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = decided_split.observations_of, itertools.count()

    def broken(reports: Any) -> Any:
        if next(calls) == 4:
            reports = reports.copy()
            reports[1, -1] = 1.5  # of a memory: above 100 %
        return real(reports)

    monkeypatch.setattr(decided_split, "observations_of", broken)
    by_rank = shares_in_a_group(BATCHING[name], meets=meets, monkeypatch=monkeypatch)
    assert all(seen == by_rank[0] for seen in by_rank)
    assert len(set(by_rank[0][8:39])) == 1
    assert caplog.text.count("balancing stops and the shares stay as they are: ") == 1
