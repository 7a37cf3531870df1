"""Trainer groups whose ranks are threads of one process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from loopback import TIMEOUT_S, LoopbackGroupComm, Meeting

from hpcbal.comm.group_comm import GroupComm
from hpcbal.training.backend import GradientCollective, LocalCollective
from hpcbal.training.groups import TrainerGroups, check_groups
from hpcbal.training.weights import Array


class LoopbackCollective(GradientCollective):
    """Sums between threads, in order of rank.

    Args:
        rank: in the group.
        meeting: shared by the group's ranks and used for nothing else.
    """

    meets = True

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = meeting.num_ranks
        self._meeting = meeting

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        arrays = [np.array(tensor) for tensor in tensors]
        own_status = status.astype(arrays[0].dtype if arrays else status.dtype)
        everyone = self._meeting.exchange(self.rank, [*arrays, own_status])
        *sums, total = (reduce(np.add, parts) for parts in zip(*everyone, strict=True))
        return sums, total.astype(np.float64)

    def exchange(self, numbers: Array) -> None:
        numbers[...] = reduce(np.add, self._meeting.exchange(self.rank, numbers.copy()))

    def tell(self, numbers: Array) -> None:
        numbers[...] = self._meeting.exchange(self.rank, numbers.copy())[0]

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        everyone = self._meeting.exchange(self.rank, numbers.copy())
        answered = answer(np.stack(everyone)) if self.rank == 0 else None
        result: Array = self._meeting.exchange(self.rank, answered)[0].copy()
        return result

    def close(self) -> None:
        """Nothing to free."""


class LoopbackHub:
    """Where the trainers of one process find each other.

    Args:
        num_trainers: their number; slot j is that of trainer j.
        timeout_s: how long a rank of a group waits for the others.
    """

    def __init__(self, num_trainers: int, timeout_s: float = TIMEOUT_S) -> None:
        self.num_trainers = num_trainers
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._meetings: dict[Hashable, Meeting] = {}
        self._is_aborted = False

    def abort(self) -> None:
        """End all meetings, also those to come: a trainer has died, and nobody may wait for it."""
        with self._lock:
            self._is_aborted = True
            for meeting in self._meetings.values():
                meeting.abort()

    def meeting(self, key: Hashable, num_ranks: int) -> Meeting:
        """The meeting of that key; made by the first who asks for it."""
        with self._lock:
            if key not in self._meetings:
                self._meetings[key] = Meeting(num_ranks, self._timeout_s)
                if self._is_aborted:
                    self._meetings[key].abort()
            return self._meetings[key]


class LoopbackGroups(TrainerGroups):
    """One trainer's end of the groups.

    Args:
        trainer: number of this trainer.
        hub: shared by all trainers.
    """

    def __init__(self, trainer: int, hub: LoopbackHub) -> None:
        self._trainer = trainer
        self._hub = hub
        self._num_openings = 0
        self._num_alone: Counter[tuple[int, ...]] = Counter()
        self._comm_by_group: dict[tuple[int, ...], GroupComm] = {}
        self._collective_by_group: dict[tuple[int, ...], GradientCollective] = {}

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Waits for nobody."""
        check_groups(groups, self._hub.num_trainers)
        self.close_all()
        self._num_openings += 1
        for group in groups:
            if self._trainer in group:
                self._form(group, self._num_openings)

    def _form(self, group: tuple[int, ...], number: int) -> None:
        rank, size, key = group.index(self._trainer), len(group), (number, group)
        self._comm_by_group[group] = LoopbackGroupComm(rank, self._hub.meeting((*key, "comm"), size))
        self._collective_by_group[group] = (
            LocalCollective()
            if size == 1
            else LoopbackCollective(rank, self._hub.meeting((*key, "collective"), size))
        )

    def open_one(self, group: tuple[int, ...]) -> None:
        self._num_alone[group] += 1
        self._form(group, -self._num_alone[group])

    def close_one(self, group: tuple[int, ...]) -> None:
        del self._comm_by_group[group], self._collective_by_group[group]

    def comm_of(self, group: tuple[int, ...]) -> GroupComm:
        return self._comm_by_group[group]

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        return self._collective_by_group[group]

    def close_all(self) -> None:
        self._comm_by_group.clear()
        self._collective_by_group.clear()

    def shutdown(self) -> None:
        self.close_all()
