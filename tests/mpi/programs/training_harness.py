"""The common part of the programs of training tests: ranks, data, replicas, and how cases are run."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from mpi4py import MPI

from hpcbal.comm.group_comm import GroupComm
from hpcbal.comm.mpi import MpiGroupComm, wait_for
from hpcbal.config import DnnConfig
from hpcbal.data.spec import SampleSpec
from hpcbal.training.backend import Backend, Replica
from hpcbal.training.groups import GroupFailed, TrainerGroups, agree

# As in a run: rank 0 of the world is no trainer, and Horovod never sees it.
IS_TRAINER = MPI.COMM_WORLD.rank > 0
COMM = cast("MPI.Intracomm", MPI.COMM_WORLD.Split(int(IS_TRAINER), MPI.COMM_WORLD.rank))
NUM_CLASSES = 5
SHAPE = (6, 6, 1)
SPEC = SampleSpec.of(SHAPE, "float64")
WEIGHTS = np.random.default_rng(3).uniform(0.0, 2.0, 1000)
"""How much a sample counts in the loss, by id."""
Partition = list[tuple[int, ...]]


def dnn_of(model: str) -> DnnConfig:
    """With all that an optimizer may have."""
    return DnnConfig.model_validate(
        {
            "name": "dnn",
            "model": model,
            "batch_size": 1,
            "stop": {"max_epochs": 1},
            "optimizer": {
                "name": "sgd",
                "learning_rate": 0.05,
                "momentum": 0.9,
                "weight_decay": 0.01,
                "nesterov": True,
                "clip_norm": 0.5,
            },
        }
    )


@dataclass(frozen=True)
class Batch:
    ids: np.ndarray
    x: np.ndarray
    y: np.ndarray
    padding_limit: float = math.inf

    def part(self, start: int, stop: int) -> Batch:
        return Batch(self.ids[start:stop], self.x[start:stop], self.y[start:stop])

    @property
    def work(self) -> float:
        return float(len(self.ids))


@dataclass
class Models:
    """The replicas of one backend, built once and set back to their beginning for each case.

    Attributes:
        weighs: whether samples count by `WEIGHTS`; the emulated backend does not take them.
    """

    backend: Backend
    model: str
    normalised: str | None
    weighs: bool
    built: dict[tuple[str, str], tuple[Replica, dict[str, np.ndarray]]] = field(default_factory=dict)

    def replica(self, model: str, use: str) -> Replica:
        if (model, use) not in self.built:
            weights = WEIGHTS if self.weighs else None
            new = self.backend.build(dnn_of(model), SPEC, NUM_CLASSES, seed=7, sample_weights=weights)
            self.built[model, use] = new, new.state()
        replica, start = self.built[model, use]
        replica.load_state(start)
        replica.broken = None
        return replica


@dataclass(frozen=True)
class Bench:
    """The argument of every case."""

    groups: TrainerGroups
    models: Models

    def build(self, use: str = "group") -> Replica:
        return self.models.replica(self.models.model, use)

    def join(self, partition: Partition) -> tuple[int, ...] | None:
        """Form the groups of `partition`; the one of this rank."""
        self.groups.open(partition)
        return next((group for group in partition if COMM.rank in group), None)


def mine(batch: Batch, shares: list[int], rank: int) -> Batch:
    start = sum(shares[:rank])
    return batch.part(start, start + shares[rank])


def assert_close(actual: Replica, expected: Replica) -> None:
    for (name, a), b in zip(actual.state().items(), expected.state().values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10, err_msg=name)


def assert_same_everywhere(comm: GroupComm, replica: Replica) -> None:
    assert isinstance(comm, MpiGroupComm)
    for state in comm.mpi.allgather(replica.state()):
        for name, array in replica.state().items():
            np.testing.assert_array_equal(array, state[name], err_msg=name)


def check_agreed(comm: GroupComm, failed: GroupFailed, message: str) -> None:
    """After a failed step all ranks can learn the detail."""
    with pytest.raises(GroupFailed) as agreed:
        agree(comm, failed)
    assert message in agreed.value.detail
    assert agreed.value.cause == failed.cause


def pass_cases(cases: Iterable[Callable[[Bench], None]], bench: Bench, *names: str) -> None:
    """Try one case after the other; trainer 0 prints `passed NAMES CASE` for each."""
    for case in cases:
        case(bench)
        wait_for(COMM.Ibarrier())  # patiently: others may trace their networks meanwhile
        if COMM.rank == 0:
            print("passed", *names, case.__name__, flush=True)


def run(main: Callable[[], None]) -> None:
    """On the trainers, while the bystander waits; an exception ends the job with its traceback."""
    try:
        if IS_TRAINER:
            main()
        wait_for(MPI.COMM_WORLD.Ibarrier())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
