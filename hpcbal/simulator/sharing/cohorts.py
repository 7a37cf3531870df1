"""Machines that are alike, simulated once.

Machines that have begun and ended the same subtasks at the same times are in the same state, and what they
do next depends on nothing else. Here these are machines of one speed that have had the same jobs, each with
equal shares of its samples, since they were last idle. Such a cohort is simulated as one machine. It is
divided when a job starts on some of its machines only; machines that are idle are united again. With a cohort
for each machine, results are the same (tests/unit/simulator/sharing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from hpcbal.simulator.serving.clock import Clock
from hpcbal.simulator.sharing.job import SimulatedMachine
from hpcbal.simulator.sharing.resource import Resource


class OnOver(Protocol):
    """Hears of the end of a subtask."""

    def __call__(self, job: str, ranks: tuple[int, ...], seconds: float) -> None: ...


class Cohort:
    """Machines that are alike.

    Args:
        clock: of the simulation.
        ranks: of the machines.
        machine: what each of them is.
        uses_queues: see `Resource`.
        computed, sent: called when a CPU subtask or a network subtask is over.

    Attributes:
        jobs: that have been placed on them and have not left.
        cpu, network: of each machine.
    """

    def __init__(
        self,
        clock: Clock,
        ranks: tuple[int, ...],
        machine: SimulatedMachine,
        uses_queues: bool,
        computed: OnOver,
        sent: OnOver,
    ) -> None:
        self.ranks, self.machine = ranks, machine
        self.jobs: set[str] = set()
        self._computed, self._sent = computed, sent
        self.cpu = Resource(clock, uses_queues, partial(self._on_over, computed))
        self.network = Resource(clock, uses_queues, partial(self._on_over, sent))
        self._tickets: dict[str, int] = {}
        self._last_ticket = 0
        self._clock, self._uses_queues = clock, uses_queues

    def _on_over(self, hears: OnOver, job: str, seconds: float) -> None:
        hears(job, self.ranks, seconds)

    def give_ticket(self, job: str) -> None:
        """A step of the job may begin; its subtasks wait behind those of steps that began before."""
        self._last_ticket += 1
        self._tickets[job] = self._last_ticket

    def compute(self, job: str, seconds: float) -> None:
        """The CPU subtask of a job's step is next."""
        self.cpu.ask(job, self._tickets[job], seconds / self.machine.speed)

    def communicate(self, job: str, seconds: float) -> None:
        """A network subtask of a job's step is next."""
        self.network.ask(job, self._tickets[job], seconds)

    def leave(self, job: str) -> None:
        """A job is gone."""
        self.jobs.discard(job)
        self._tickets.pop(job, None)

    def divide(self, ranks: tuple[int, ...]) -> Cohort:
        """Take machines out, as a cohort of their own in the same state."""
        other = Cohort(self._clock, ranks, self.machine, self._uses_queues, self._computed, self._sent)
        other.jobs, other._tickets, other._last_ticket = (
            set(self.jobs),
            dict(self._tickets),
            self._last_ticket,
        )
        other.cpu = self.cpu.copy(partial(other._on_over, self._computed))
        other.network = self.network.copy(partial(other._on_over, self._sent))
        self.ranks = tuple(rank for rank in self.ranks if rank not in set(ranks))
        return other


class Cohorts:
    """All machines of a run.

    Args:
        clock: of the simulation.
        machines: by rank.
        uses_queues: see `Resource`.
        computed, sent: see `Cohort`.
        are_united: False: every machine is a cohort, whether alike or not.

    Attributes:
        cpu_s, network_s: for how long each machine's cores and link have been used, as last counted.
    """

    def __init__(
        self,
        clock: Clock,
        machines: Mapping[int, SimulatedMachine],
        uses_queues: bool,
        computed: OnOver,
        sent: OnOver,
        are_united: bool = True,
    ) -> None:
        kinds: dict[object, list[int]] = {}
        for rank, machine in machines.items():
            kinds.setdefault(machine if are_united else rank, []).append(rank)
        self._are_united = are_united
        self._cohorts = [
            Cohort(clock, tuple(ranks), machines[ranks[0]], uses_queues, computed, sent)
            for ranks in kinds.values()
        ]
        self.cpu_s = dict.fromkeys(machines, 0.0)
        self.network_s = dict.fromkeys(machines, 0.0)

    def __len__(self) -> int:
        return len(self._cohorts)

    def place(self, job: str, kinds: Mapping[int, object]) -> None:
        """A job comes to machines.

        Args:
            job: its name.
            kinds: by rank of its machines, equal where the job is equal to them.
        """
        self.count()
        for cohort in list(self._cohorts):
            parts: dict[object, list[int]] = {}
            for rank in cohort.ranks:
                parts.setdefault((rank in kinds, kinds.get(rank)), []).append(rank)
            for ranks in list(parts.values())[1:]:
                self._cohorts.append(cohort.divide(tuple(ranks)))
        for cohort in self.of(kinds):
            cohort.jobs.add(job)

    def leave(self, job: str) -> None:
        """A job leaves its machines."""
        self.count()
        for cohort in self._cohorts:
            cohort.leave(job)
        if not self._are_united:
            return
        idle: dict[SimulatedMachine, Cohort] = {}
        kept: list[Cohort] = []
        for cohort in self._cohorts:
            first = None
            if not cohort.jobs:
                first = idle.setdefault(cohort.machine, cohort)
            if first is None or first is cohort:
                kept.append(cohort)
            else:
                first.ranks = tuple(sorted((*first.ranks, *cohort.ranks)))
        self._cohorts = kept

    def of(self, ranks: Iterable[int]) -> Sequence[Cohort]:
        """The cohorts of machines, all of whose members are among them."""
        wanted = set(ranks)
        return [cohort for cohort in self._cohorts if cohort.ranks[0] in wanted]

    def count(self) -> None:
        """Add to `cpu_s` and `network_s`."""
        for cohort in self._cohorts:
            cpu_s, network_s = cohort.cpu.take_busy_s(), cohort.network.take_busy_s()
            for rank in cohort.ranks:
                self.cpu_s[rank] += cpu_s
                self.network_s[rank] += network_s
