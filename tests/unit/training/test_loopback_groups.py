"""Trainer groups of threads: they agree, sum and fail together as groups over MPI do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from loopback import LoopbackGroupComm, Meeting
from loopback_groups import LoopbackCollective, LoopbackGroups, LoopbackHub

from hpcbal.training.backend import Contribution, GradientCollective, Replica, Sums
from hpcbal.training.groups import DETAIL_BYTES, GroupFailed, NonFiniteError, agree, share_state
from hpcbal.training.step import reduce_step

TIMEOUT_S = 60.0


def on_threads(num_ranks: int, play: Callable[[int], Any]) -> list[Any]:
    """Call `play` on a thread for each rank; return its results by rank."""
    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(play, range(num_ranks), timeout=TIMEOUT_S))


def in_group(num_ranks: int, play: Callable[[LoopbackGroupComm], Any]) -> list[Any]:
    meeting = Meeting(num_ranks, TIMEOUT_S)
    return on_threads(num_ranks, lambda rank: play(LoopbackGroupComm(rank, meeting)))


def failure_of(comm: LoopbackGroupComm, error: Exception | None) -> GroupFailed | None:
    try:
        agree(comm, error)
    except GroupFailed as failed:
        return failed
    return None


def test_ranks_without_an_error_all_go_on() -> None:
    assert in_group(3, lambda comm: failure_of(comm, None)) == [None] * 3


def test_a_failure_of_one_rank_is_that_of_all_with_its_cause_and_the_end_of_its_detail() -> None:
    error = NonFiniteError("x" * (2 * DETAIL_BYTES) + " the end")
    first, own, last = in_group(3, lambda comm: failure_of(comm, error if comm.rank == 1 else None))
    for other in (first, last):
        assert (other.cause, other.local) == ("nan", False)
        assert other.detail.startswith("rank 1 of the group: xxx")
        assert other.detail.endswith(" the end")
    assert (own.cause, own.local, own.detail) == ("nan", True, str(error))


def test_ranks_that_fail_differently_keep_their_own_failure_and_others_get_the_first() -> None:
    errors: list[Exception | None] = [None, MemoryError("no room"), NonFiniteError("a loss")]
    failures = in_group(3, lambda comm: failure_of(comm, errors[comm.rank]))
    assert [failed.cause for failed in failures] == ["oom", "oom", "nan"]
    assert [failed.local for failed in failures] == [False, True, True]


class Weights:
    """A replica that holds one array; it may refuse what it is given."""

    def __init__(self, values: list[float], misfit: bool = False) -> None:
        self.arrays = {"weights/w": np.array(values), "optimizer/steps": np.array(3, np.int64)}
        self.misfit = misfit

    def state(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self.arrays.items()}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        if self.misfit:
            raise ValueError("the layers differ")
        self.arrays = {name: array.copy() for name, array in arrays.items()}


def test_the_masters_weights_are_sent_only_if_ranks_differ() -> None:
    replicas = [Weights([1.0, 2.0]), Weights([1.0, 2.0]), Weights([5.0, 6.0])]

    def share(comm: LoopbackGroupComm) -> list[bool]:
        replica = cast("Replica", replicas[comm.rank])
        return [share_state(comm, replica), share_state(comm, replica)]

    assert in_group(3, share) == [[True, False]] * 3
    for replica in replicas:
        assert replica.arrays["weights/w"].tolist() == [1.0, 2.0]
        assert replica.arrays["optimizer/steps"] == 3


def test_weights_that_do_not_fit_one_rank_fail_the_group() -> None:
    replicas = [Weights([1.0]), Weights([2.0], misfit=True)]

    def share(comm: LoopbackGroupComm) -> str:
        with pytest.raises(GroupFailed, match="the layers differ") as failed:
            share_state(comm, cast("Replica", replicas[comm.rank]))
        return failed.value.cause

    assert in_group(2, share) == ["error", "error"]


def sums_of(collective: GradientCollective) -> list[Any]:
    rank = collective.rank
    tensors = [np.full((2, 2), rank + 1.0, np.float32), np.array([rank], np.float32)]
    (matrix, vector), status = collective.sum(tensors, np.array([0.5, rank]))
    assert matrix.dtype == np.float32
    assert tensors[0].tolist() == [[rank + 1.0] * 2] * 2, "the input was changed"
    nothing, alone = collective.sum((), np.array([1.0]))
    assert list(nothing) == []
    numbers = np.array([float(rank), 1.0])
    collective.exchange(numbers)
    told = np.array([rank + 7.0])
    collective.tell(told)
    answered = collective.consult(np.array([rank + 1.0]), lambda everyone: everyone.cumsum(), 3)
    return [matrix.tolist(), vector.tolist(), status.tolist(), alone.tolist()] + [
        array.tolist() for array in (numbers, told, answered)
    ]


def test_all_ranks_get_the_sums_and_the_masters_answers() -> None:
    meeting = Meeting(3, TIMEOUT_S)
    found = on_threads(3, lambda rank: sums_of(LoopbackCollective(rank, meeting)))
    assert found[0] == [
        [[6.0, 6.0], [6.0, 6.0]],
        [3.0],
        [1.5, 3.0],
        [3.0],
        [3.0, 3.0],
        [7.0],
        [1.0, 3.0, 6.0],
    ]
    assert found == [found[0]] * 3


def test_a_failure_in_a_step_reaches_the_whole_group() -> None:
    meeting = Meeting(2, TIMEOUT_S)

    def step(rank: int) -> tuple[str, bool]:
        error = MemoryError("17 GiB") if rank else None
        contribution = Contribution([np.zeros(2)], Sums())
        with pytest.raises(GroupFailed) as failed:
            reduce_step(LoopbackCollective(rank, meeting), contribution, error)
        return failed.value.cause, failed.value.local

    assert on_threads(2, step) == [("oom", False), ("oom", True)]


def test_groups_come_and_go_and_a_trainer_may_be_in_none() -> None:
    hub = LoopbackHub(3, TIMEOUT_S)
    rounds: list[list[tuple[int, ...]]] = [[(2, 0), (1,)], [(0, 1)], [(1, 2)], [(0, 1, 2)]]

    def train(trainer: int) -> list[list[float]]:
        groups, seen = LoopbackGroups(trainer, hub), []
        for plan in rounds:
            groups.open(plan)
            mine = next((group for group in plan if trainer in group), None)
            if mine is None:
                continue
            collective, comm = groups.collective_of(mine), groups.comm_of(mine)
            assert (collective.rank, comm.rank) == (mine.index(trainer),) * 2
            assert (collective.size, comm.size) == (len(mine),) * 2
            _, total = collective.sum((), np.array([float(trainer)]))
            seen.append(comm.all_gather(total)[:, 0].tolist())
        groups.shutdown()
        return seen

    assert on_threads(3, train) == [
        [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0, 3.0]],
        [[1.0], [1.0, 1.0], [3.0, 3.0], [3.0, 3.0, 3.0]],
        [[2.0, 2.0], [3.0, 3.0], [3.0, 3.0, 3.0]],
    ]


@pytest.mark.parametrize("groups", [[(0, 1), (1, 2)], [(3,)], [()]])
def test_groups_that_overlap_or_do_not_exist_are_a_bug_of_ours(groups: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"each of 0\.\.2 at most once"):
        LoopbackGroups(0, LoopbackHub(3)).open(groups)
