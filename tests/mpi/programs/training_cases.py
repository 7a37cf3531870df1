"""Three trainers and a bystander: groups train as one process would, and fail together.

Usage: training_cases.py COLLECTIVES BACKENDS (each a comma-separated list), on 4 ranks. Trainer 0 prints one
line `passed COLLECTIVE BACKEND CASE` per case; a failed case ends the job with its traceback. The cases of
synchronised layers need TensorFlow and follow as those of the backend "synchronised"; those of the process
groups of torch.distributed follow as those of the backend "process groups".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from synchronised_cases import SYNCHRONISED, SYNCHRONISED_CASES
from training_harness import (
    COMM,
    NUM_CLASSES,
    SHAPE,
    Batch,
    Bench,
    Models,
    Partition,
    assert_close,
    assert_same_everywhere,
    check_agreed,
    mine,
    pass_cases,
    run,
)

from hpcbal.comm.mpi import MpiGroupComm
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, Decision, Observation, split_evenly
from hpcbal.policies.batching.even import Even
from hpcbal.policies.batching.task import BatchState
from hpcbal.runtime.balance.decided_split import DecidedSplit
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.epoch import train_balanced
from hpcbal.training.backend import LocalCollective
from hpcbal.training.collectives import COLLECTIVES, ChosenCollective
from hpcbal.training.collectives import open_groups as open_chosen
from hpcbal.training.groups import GroupFailed, NonFiniteError, TrainerGroups, agree, share_state
from hpcbal.training.mpi_collective import MpiGroups
from hpcbal.training.step import compute_step, evaluate_step, finish_step, train_step

PARTITIONS: list[Partition] = [[(0,), (1, 2)], [(2, 0, 1)], [(1, 0)], [(2,), (0,)], [(0, 2), (1,)]]


def steps(group: tuple[int, ...], num_steps: int = 6) -> Iterator[tuple[Batch, list[int]]]:
    """Global batches and how they are split: uneven, different at every step, with empty shares."""
    rng = np.random.default_rng([len(group), group[0]])
    for step in range(num_steps):
        n = int(rng.integers(1, 14))
        batch = Batch(np.arange(n), rng.normal(size=(n, *SHAPE)), rng.integers(0, NUM_CLASSES, n))
        if step == 1:
            shares = [0] * (len(group) - 1) + [n]
        elif step == 2:
            shares = list(split_evenly(n, len(group)))
        else:
            cuts = np.sort(rng.integers(0, n + 1, len(group) - 1))
            shares = np.diff([0, *cuts, n]).tolist()
        yield batch, shares


def replay(bench: Bench) -> None:
    """Parameters, metrics and optimizer state equal those of one process on the same global batches."""
    for partition in PARTITIONS:
        group = bench.join(partition)
        if group is None:
            continue
        collective, replica = bench.groups.collective_of(group), bench.build()
        alone = bench.build("alone")
        assert collective.size == len(group)
        assert group[collective.rank] == COMM.rank
        for batch, shares in steps(group):
            n = len(batch.ids)
            outcome = train_step(replica, mine(batch, shares, collective.rank), n, collective)
            expected = train_step(alone, batch, n, LocalCollective())
            np.testing.assert_allclose(outcome.sums.loss, expected.sums.loss, rtol=1e-10)
            assert (outcome.sums.states.tolist(), outcome.sums.count) == (expected.sums.states.tolist(), n)
            assert_close(replica, alone)
            seen = evaluate_step(replica, mine(batch, shares, collective.rank), collective)
            np.testing.assert_allclose(
                seen.sums.loss, evaluate_step(alone, batch, LocalCollective()).sums.loss, rtol=1e-9
            )
        assert_same_everywhere(bench.groups.comm_of(group), replica)


@dataclass(frozen=True)
class Restless(BatchingPolicy[BatchState]):
    """Another split at every decision, with empty shares among them."""

    cadence: Cadence = Cadence.BACKGROUND  # type: ignore[misc]

    def start(self, task: BatchTask) -> BatchState:
        return Even().start(task)

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        check_reports(state, observations)
        rng = np.random.default_rng(state.batch_sizes)
        cuts = np.sort(rng.integers(0, state.task.num_samples + 1, state.task.num_workers - 1))
        return Decision(BatchState(state.task, tuple(np.diff([0, *cuts, state.task.num_samples]).tolist())))


def check_reports(state: BatchState, observations: Sequence[Observation]) -> None:
    """The reports are complete: the samples of the step, and a time of each rank that had some."""
    assert sum(seen.num_samples for seen in observations) in (state.task.num_samples, LAST_STEP)
    assert all((seen.processing_s > 0) == (seen.num_samples > 0) for seen in observations)


FULL_STEP, LAST_STEP = 13, 8

MOST_STEPS = 300
"""Steps until shares must have changed often enough; a dozen, unless decisions come late all the time."""


def balanced(bench: Bench) -> None:
    """The same with shares that the group's master decides anew all the time, at every cadence.

    As in a run, shares are planned one step ahead where no step waits for a decision. Steps continue until
    shares have changed often, and a smaller one ends the pass.
    """
    for cadence in (Cadence.BACKGROUND, Cadence.UNTIL_SETTLED, Cadence.EVERY_STEP):
        group = bench.join([(2, 0, 1)])
        assert group is not None
        collective, replica = bench.groups.collective_of(group), bench.build()
        comm, alone = bench.groups.comm_of(group), bench.build("alone")
        split = DecidedSplit("dnn", Restless(cadence), FULL_STEP, collective)
        batches = SimpleNamespace(balancer=split, step_performed=lambda: None)
        split.start()
        rng, n, shares = np.random.default_rng(5), FULL_STEP, split.deal(0, FULL_STEP)
        least_changes = 3 if cadence is Cadence.BACKGROUND else 9
        for _ in range(MOST_STEPS):
            changes = split.machine.num_changes
            coming = FULL_STEP if changes < least_changes else LAST_STEP
            ahead = split.deal(0, coming) if split.plans_ahead else None
            assert isinstance(comm, MpiGroupComm)
            assert comm.mpi.allgather((shares.counts, changes)) == [(shares.counts, changes)] * comm.size
            batch = Batch(np.arange(n), rng.normal(size=(n, *SHAPE)), rng.integers(0, NUM_CLASSES, n))
            part = mine(batch, list(shares.counts), collective.rank)
            step = Step(0, n, True, n, shares, cast("Any", part))
            train_balanced(replica, step, cast("Any", batches), collective)
            train_step(alone, batch, n, LocalCollective())
            assert_close(replica, alone)
            shares = ahead or split.deal(0, coming)
            time.sleep(0.005)  # a step that lasts longer than most decisions
            if n == LAST_STEP:
                break
            n = coming
        assert split.machine.num_changes >= least_changes
        split.close()
        assert_same_everywhere(comm, replica)


def consulting(bench: Bench) -> None:
    """The master gets each rank's report, its answer reaches all, and the sum that follows is right."""
    group = bench.join([(2, 0, 1)])
    assert group is not None
    collective = bench.groups.collective_of(group)
    if not collective.meets:
        with pytest.raises(NotImplementedError, match="do not meet"):
            collective.consult(np.zeros(1), lambda numbers: numbers[0], 1)
        return
    wanted = np.array([[rank, 10.0 * rank] for rank in range(collective.size)])
    for turn in range(20):
        if turn % 3 == collective.rank:
            time.sleep(0.002)  # everybody is the last one at times
        seen: list[Any] = []

        def answer(numbers: Any, turn: int = turn, seen: list[Any] = seen) -> Any:
            seen.append(numbers.copy())
            return np.append(numbers[:, 1] + turn, -1.0)

        answered = collective.consult(wanted[collective.rank] + turn, answer, collective.size + 1)
        assert [numbers.tolist() for numbers in seen] == [(wanted + turn).tolist()] * (collective.rank == 0)
        assert answered.tolist() == [*(wanted[:, 1] + 2 * turn).tolist(), -1.0]
        _, summed = collective.sum((), np.full(2, float(turn)))
        assert summed.tolist() == [3.0 * turn] * 2


def batch_norm(bench: Bench) -> None:
    """With batch norm all ranks stay equal, and the moving statistics move."""
    for partition in PARTITIONS[:2]:
        group = bench.join(partition)
        assert group is not None
        assert bench.models.normalised is not None
        replica = bench.models.replica(bench.models.normalised, "group")
        collective = bench.groups.collective_of(group)
        before = replica.state()
        for batch, shares in steps(group):
            train_step(replica, mine(batch, shares, collective.rank), len(batch.ids), collective)
        assert_same_everywhere(bench.groups.comm_of(group), replica)
        moving = [name for name in before if "moving" in name]
        assert len(moving) == 2
        for name in moving:
            assert not np.array_equal(before[name], replica.state()[name])
            assert np.isfinite(replica.state()[name]).all()


class Faulty:
    """A replica that fails at its third call of one method, on one rank; else the one inside."""

    def __init__(self, inner: Any, method: str, error: Exception) -> None:
        self._inner, self._method, self._error, self._calls = inner, method, error, 0
        self.broken: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name == self._method else getattr(self._inner, name)

    def _call(self, name: str, *args: Any) -> Any:
        self._calls += 1
        if self._calls == 3:
            raise self._error
        return getattr(self._inner, name)(*args)


def failures(bench: Bench) -> None:
    """One rank fails: its group fails in that step, unchanged; the other group trains on."""
    cases = (
        ("compute", RuntimeError("a bug in the model"), "error"),
        ("compute", MemoryError("device full"), "oom"),
        ("compute", NonFiniteError("the loss is nan"), "nan"),
        ("apply", RuntimeError("a bug in the optimizer"), "error"),
    )
    for method, error, cause in cases:
        group = bench.join([(0,), (1, 2)])
        assert group is not None
        collective, replica = bench.groups.collective_of(group), bench.build()
        faulty: Any = Faulty(replica, method, error) if COMM.rank == 2 else replica
        done, before, failed = 0, replica.state(), None
        for batch in [next(steps((1, 2), 1))[0]] * 6:
            n = len(batch.ids)
            shares = [n] if len(group) == 1 else [n - n // 2, n // 2]
            before = replica.state()
            try:
                train_step(faulty, mine(batch, shares, collective.rank), n, collective)
            except GroupFailed as group_failed:
                failed = group_failed
                break
            done += 1
        if COMM.rank == 0:
            assert (failed, done) == (None, 6)
            continue
        assert failed is not None, "the group of the failing rank must fail"
        assert done == (2 if method == "compute" else 3)
        assert (failed.cause, failed.local) == (cause, COMM.rank == 2)
        assert str(error) in failed.detail or COMM.rank == 1
        if method == "compute":
            for name, array in replica.state().items():
                np.testing.assert_array_equal(array, before[name], err_msg="a failed step changes nothing")
        check_agreed(bench.groups.comm_of(group), failed, str(error))


def not_a_number(bench: Bench) -> None:
    """A NaN in the samples of one rank fails the whole group with cause nan."""
    group = bench.join([(0,), (2, 1)])
    assert group is not None
    collective, replica = bench.groups.collective_of(group), bench.build()
    x = np.full((2, *SHAPE), np.nan if COMM.rank == 1 else 0.5)
    batch = Batch(np.arange(2), x, np.zeros(2, np.int64))
    if len(group) == 1:
        train_step(replica, batch, 2, collective)
    else:
        with pytest.raises(GroupFailed) as failed:
            train_step(replica, batch, 4, collective)
        assert (failed.value.cause, failed.value.local) == ("nan", COMM.rank == 1)
    for array in replica.state().values():
        assert np.isfinite(array).all()


def suspend(bench: Bench) -> None:
    """Any rank's wish to stop reaches all, and the step is still done."""
    group = bench.join([(0, 1, 2)])
    assert group is not None
    collective, replica = bench.groups.collective_of(group), bench.build()
    start = replica.state()
    batch, _ = next(steps(group))
    part = mine(batch, list(split_evenly(len(batch.ids), 3)), collective.rank)
    outcome = train_step(replica, part, len(batch.ids), collective, suspend=COMM.rank == 1)
    assert outcome.suspend
    assert any(not np.array_equal(start[name], array) for name, array in replica.state().items())
    assert not train_step(replica, part, len(batch.ids), collective).suspend
    before = replica.state()
    assert train_step(replica, batch.part(0, 0), 0, collective).sums.count == 0
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg="a step without samples changes nothing")


def wrong_total(bench: Bench) -> None:
    """Shares that do not add up to the step are an error on all ranks."""
    group = bench.join([(0, 1, 2)])
    assert group is not None
    collective, replica = bench.groups.collective_of(group), bench.build()
    batch, _ = next(steps(group))
    n = len(batch.ids)
    with pytest.raises(GroupFailed, match=f"{3 * n} samples of a step of {n}"):
        train_step(replica, batch, n, collective)


def own_groups(bench: Bench) -> None:
    """Ranks form one group after another without those that are in none, and train as after a round.

    Trainer 2 is late where it takes part, and does not come where it does not.
    """
    bench.join(PARTITIONS[0])  # groups of a round stay as they are
    for group in [(0, 1), (2, 0, 1), (0, 1), (1, 2), (0,), (1, 2)]:
        if COMM.rank not in group:
            continue
        if COMM.rank == 2:
            time.sleep(0.05)
        bench.groups.open_one(group)
        comm, collective = bench.groups.comm_of(group), bench.groups.collective_of(group)
        assert (comm.rank, comm.size) == (group.index(COMM.rank), len(group))
        replica, alone = bench.build(), bench.build("alone")
        for batch, shares in steps(group, num_steps=2):
            n = len(batch.ids)
            train_step(replica, mine(batch, shares, collective.rank), n, collective)
            train_step(alone, batch, n, LocalCollective())
            assert_close(replica, alone)
        bench.groups.close_one(group)
    bench.join([])


def lacking(bench: Bench) -> None:
    """A step whose ranks find broken samples counts as if nobody had counted on them."""
    group = bench.join([(1, 0, 2)])
    assert group is not None
    collective, replica, alone = bench.groups.collective_of(group), bench.build(), bench.build("alone")
    for batch, shares in steps(group):
        n = len(batch.ids)
        announced = n + 3  # of whichever rank
        own = mine(batch, shares, collective.rank)
        computed = compute_step(replica, own, announced, collective, may_lack=True)
        outcome = finish_step(replica, computed, collective)
        assert outcome.sums.count == n
        train_step(alone, batch, n, LocalCollective())
        assert_close(replica, alone)
    for batch, _ in steps(group, num_steps=1):  # the mean of each rank counts its weight, whatever is missing
        own = mine(batch, list(split_evenly(len(batch.ids), 3)), collective.rank)
        weight = (0.5, 0.25, 0.25)[collective.rank]
        finish_step(replica, compute_step(replica, own, 99, collective, weight, may_lack=True), collective)
        finish_step(alone, compute_step(alone, own, len(batch.ids), collective, weight), collective)
        assert_close(replica, alone)
    before = replica.state()
    nothing = compute_step(replica, batch.part(0, 0), 3, collective, may_lack=True)
    assert finish_step(replica, nothing, collective).sums.count == 0
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg="a step without samples changes nothing")


def one_start(bench: Bench) -> None:
    """`share_state` sends nothing between equal replicas, and the master's arrays to different ones."""
    group = bench.join([(2, 0, 1)])
    assert group is not None
    comm, replica = bench.groups.comm_of(group), bench.build()
    assert not share_state(comm, replica)
    if comm.rank == 0:
        replica.load_state({name: array + 1 for name, array in replica.state().items()})
    assert share_state(comm, replica)
    assert_same_everywhere(comm, replica)
    assert not share_state(comm, replica)


def agreement(bench: Bench) -> None:
    """Outside of steps, a failure on one rank is reported to all, the end of its detail first."""
    group = bench.join([(0, 1, 2)])
    assert group is not None
    comm = bench.groups.comm_of(group)
    agree(comm)
    with pytest.raises(GroupFailed) as failed:
        agree(comm, MemoryError("x" * 5000 + " the end") if comm.rank == 1 else None)
    assert (failed.value.cause, failed.value.local) == ("oom", comm.rank == 1)
    assert failed.value.rank == 1
    assert failed.value.detail.endswith(" the end")
    assert comm.rank == 1 or failed.value.detail.startswith("rank 1 of the group: MemoryError: xxx")


CASES: tuple[Callable[[Bench], None], ...] = (
    replay,
    balanced,
    consulting,
    batch_norm,
    failures,
    not_a_number,
    suspend,
    wrong_total,
    own_groups,
    lacking,
    one_start,
    agreement,
)


SUMS = (replay, failures, not_a_number, suspend, lacking)
"""Those that depend on the kind of arrays that are summed, and on where they lie."""


def cases_of(collective: str, backend: str) -> tuple[Callable[[Bench], None], ...]:
    """Return the cases of a backend's arrays in the groups of a collective.

    Groups, shares and words do not depend on the arrays, nor arrays on groups: each of both passes all cases
    with one of the other.
    """
    if (collective, backend) == ("packed", "tensorflow"):
        return (*SUMS, batch_norm)
    if backend == "tensorflow":
        return CASES
    is_whole = (collective, backend) in (("mpi", "emulated"), ("torch", "torch"))
    return tuple(case for case in CASES if case is not batch_norm) if is_whole else SUMS


def open_models(name: str) -> Models:
    if name == "emulated":
        from hpcbal.training.emulated_backend import EmulatedBackend

        return Models(EmulatedBackend({}, precision="float64"), "hpcbal.models:softmax", None, weighs=False)
    if name == "torch":
        from hpcbal.training.torch.backend import TorchBackend

        return Models(TorchBackend(precision="float64"), "training_models:linear_module", None, weighs=True)
    from hpcbal.cluster.cgroup import Cores
    from hpcbal.training.devices import LocalSlots
    from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend, setup_tensorflow

    device = setup_tensorflow(LocalSlots(COMM.rank, (Cores.of_this_process(),) * COMM.size))
    backend = TensorFlowBackend(device, "float64")
    return Models(backend, "training_models:linear", "training_models:normalised", weighs=True)


def open_groups(collective: str) -> TrainerGroups:
    """The groups of a collective.

    `packed` is MPI with buffers of TensorFlow, which stand in for a GPU's; `torch` is torch.distributed with
    gloo, which stands in for nccl.
    """
    if collective == "torch":
        return open_chosen(ChosenCollective("mpi", "a test", "gloo"), COMM)
    if collective != "packed":
        return COLLECTIVES[collective](COMM)
    from hpcbal.training.keras.device_packing import DevicePacker

    return MpiGroups(COMM, DevicePacker("CPU"))


def main() -> None:
    collectives, backends = (argument.split(",") for argument in sys.argv[1:3])
    models_by_backend = {name: open_models(name) for name in backends}
    synchronised = None
    if "tensorflow" in backends:
        synchronised = Models(models_by_backend["tensorflow"].backend, SYNCHRONISED, None, weighs=True)
    for collective in collectives:
        groups = open_groups(collective)
        for name, models in models_by_backend.items():
            if (collective, name) == ("mpi", "emulated") and "torch" in backends:
                continue  # the same as beside TensorFlow
            pass_cases(cases_of(collective, name), Bench(groups, models), collective, name)
        if collective == "torch":
            from process_group_cases import PROCESS_GROUP_CASES

            pass_cases(PROCESS_GROUP_CASES, Bench(groups, models_by_backend["torch"]), "process groups")
        if synchronised is not None and collective != "packed":
            pass_cases(SYNCHRONISED_CASES, Bench(groups, synchronised), collective, "synchronised")
        groups.shutdown()
    for models in models_by_backend.values():
        for replica, _ in models.built.values():
            # Compute, apply, a step alone, evaluate: once each, for all those groups and shares.
            assert getattr(replica, "num_traces", 0) <= 4


if __name__ == "__main__":
    run(main)
