"""Three trainers and a bystander: synchronised layers train as one process would, and leave no rank waiting.

training_cases.py runs them, so that TensorFlow is started only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import training_models
from training_harness import (
    COMM,
    NUM_CLASSES,
    SHAPE,
    Batch,
    Bench,
    assert_close,
    assert_same_everywhere,
    check_agreed,
    mine,
)

from hpcbal.training.backend import LocalCollective, Replica
from hpcbal.training.groups import GroupFailed
from hpcbal.training.step import compute_step, evaluate_step, finish_step, train_step

SYNCHRONISED, PLAIN = "training_models:synchronised", "training_models:plain_twin"
TRIPWIRES = "training_models:tripwires"
EVERYONE = (2, 0, 1)
PARTITIONS: tuple[list[tuple[int, ...]], ...] = ([EVERYONE], [(0,), (1, 2)], [(1, 0)])
"""A group of all, one alone beside two, and two with one that trains nothing."""


def batches(group: tuple[int, ...], num_steps: int) -> Iterator[tuple[Batch, list[int]]]:
    """Steps with means far from zero and shares that change; in every third step one rank has none."""
    rng = np.random.default_rng([len(group), group[0]])
    for step in range(num_steps):
        n = int(rng.integers(6, 17))
        scale = rng.uniform(0.5, 2.0, n).reshape(-1, 1, 1, 1)
        x = 3.0 + scale * rng.normal(size=(n, *SHAPE))
        cuts = np.sort(rng.integers(1, n, len(group) - 1))
        shares = np.diff([0, *cuts, n]).tolist()
        if step % 3 == 2 and len(group) > 1:
            shares[0] += shares[step % len(group) or 1]
            shares[step % len(group) or 1] = 0
        yield Batch(np.arange(n), x, rng.integers(0, NUM_CLASSES, n)), shares


def replay(bench: Bench) -> None:
    """Weights, moving statistics and metrics are those of one process with plain batch norm."""
    for partition in PARTITIONS:
        group = bench.join(partition)
        if group is None:
            continue
        collective = bench.groups.collective_of(group)
        replica, alone = bench.models.replica(SYNCHRONISED, "group"), bench.models.replica(PLAIN, "alone")
        assert list(replica.state()) == list(alone.state())
        alone.load_state(replica.state())  # checkpoints of either fit the other
        for batch, shares in batches(group, 12 if group == EVERYONE else 9):
            n, part = len(batch.ids), mine(batch, shares, collective.rank)
            outcome = train_step(replica, part, n, collective)
            expected = train_step(alone, batch, n, LocalCollective())
            np.testing.assert_allclose(outcome.sums.loss, expected.sums.loss, rtol=1e-10)
            assert_close(replica, alone)
        seen = evaluate_step(replica, part, collective)
        np.testing.assert_allclose(
            seen.sums.loss, evaluate_step(alone, batch, LocalCollective()).sums.loss, rtol=1e-9
        )
        assert_same_everywhere(bench.groups.comm_of(group), replica)
        assert getattr(replica, "num_traces", 0) <= 4  # alone, in a group, apply, evaluate


def failing_step(
    bench: Bench, replica: Replica, shares: list[int], culprit: int, cause: str, message: str
) -> None:
    """One step of all fails on all ranks and changes nothing; the culprit's detail reaches the others."""
    collective, comm = bench.groups.collective_of(EVERYONE), bench.groups.comm_of(EVERYONE)
    rng = np.random.default_rng(1)
    n, before = sum(shares), replica.state()
    batch = Batch(np.arange(n), rng.normal(size=(n, *SHAPE)), rng.integers(0, NUM_CLASSES, n))
    with pytest.raises(GroupFailed) as failed:
        train_step(replica, mine(batch, shares, collective.rank), n, collective)
    assert (failed.value.cause, failed.value.local) == (cause, COMM.rank == culprit), failed.value
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg="a failed step changes nothing")
    check_agreed(comm, failed.value, message)
    replica.broken = None


def failures(bench: Bench) -> None:
    """An operation fails before, beside, between and after the sums, either way; the group can continue."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    replica = bench.models.replica(TRIPWIRES, "group")
    armed, culprit = training_models.ARMED, 1
    for place in ("before", "beside", "between", "after"):
        for backward in (False, True):
            for error, cause in (
                (RuntimeError("it does not fit"), "error"),
                (MemoryError("it is full"), "oom"),
            ):
                if COMM.rank == culprit:
                    armed.update(wire=place, backward=backward, error=error)
                shares = [0, 3, 5] if cause == "oom" else [4, 3, 5]
                failing_step(bench, replica, shares, culprit, cause, str(error))
                armed.update(wire=None)
    for batch, shares in batches(EVERYONE, 3):
        train_step(replica, mine(batch, shares, collective.rank), len(batch.ids), collective)
    assert_same_everywhere(bench.groups.comm_of(EVERYONE), replica)


def failing_traces(bench: Bench) -> None:
    """A rank that fails while it is traced does not even know how many sums there are."""
    bench.join([EVERYONE])
    replica = bench.models.replica(TRIPWIRES, "never traced by rank 2")
    for place in ("before", "after"):
        if COMM.rank == 2:
            training_models.ARMED.update(
                wire=f"trace {place}", backward=False, error=RuntimeError("no layer")
            )
        failing_step(bench, replica, [4, 3, 5], 2, "error", "no layer")
        training_models.ARMED.update(wire=None)


def broken_updates(bench: Bench) -> None:
    """A rank whose last update failed says so at its first meeting with the others."""
    bench.join([EVERYONE])
    replica = bench.models.replica(SYNCHRONISED, "group")
    if COMM.rank == 0:
        replica.broken = RuntimeError("half updated")
    failing_step(bench, replica, [4, 3, 5], 0, "error", "half updated")


def not_a_number(bench: Bench) -> None:
    """The rank whose samples produce a NaN reports it; the other ranks do not."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    replica = bench.models.replica(SYNCHRONISED, "group")
    x = np.random.default_rng(COMM.rank).normal(size=(2, *SHAPE))
    if COMM.rank == 1:
        x[1, 2, 2, 0] = np.nan
    with pytest.raises(GroupFailed) as failed:
        train_step(replica, Batch(np.arange(2), x, np.zeros(2, np.int64)), 6, collective)
    assert (failed.value.cause, failed.value.local) == ("nan", COMM.rank == 1)


def late(bench: Bench) -> None:
    """A rank that is late within a step makes the others wait there, and that is not called their work."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    replica = bench.models.replica(TRIPWIRES, "group")
    last_s = 0.0
    for number, (batch, shares) in enumerate(batches(EVERYONE, 2)):
        if COMM.rank == 1 and number:  # in the second step all have been traced
            training_models.ARMED.update(wire="between", backward=True, error=0.5)
        part = mine(batch, shares, collective.rank)
        computed = compute_step(replica, part, len(batch.ids), collective)
        finish_step(replica, computed, collective)
        last_s = computed.waited_s
    training_models.ARMED.update(wire=None)
    waited_s = COMM.allgather(last_s)
    assert min(waited_s[0], waited_s[2]) > waited_s[1]


def suspend(bench: Bench) -> None:
    """Wishes to stop and steps without samples are as without such layers."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    replica = bench.models.replica(SYNCHRONISED, "group")
    batch, shares = next(batches(EVERYONE, 1))
    part = mine(batch, shares, collective.rank)
    before = replica.state()
    assert train_step(replica, part, len(batch.ids), collective, suspend=COMM.rank == 1).suspend
    after = replica.state()
    assert any(not np.array_equal(before[name], array) for name, array in after.items())
    assert train_step(replica, batch.part(0, 0), 0, collective).sums.count == 0
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, after[name], err_msg="a step without samples changes nothing")
    with pytest.raises(GroupFailed, match=f"{len(batch.ids)} samples of a step of 99"):
        train_step(replica, part, 99, collective)


SYNCHRONISED_CASES: tuple[Callable[[Bench], None], ...] = (
    replay,
    failures,
    failing_traces,
    broken_updates,
    not_a_number,
    late,
    suspend,
)
