"""All machines of a run in cohorts, and the jobs on them: for runs that are too large to simulate frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from hpcbal.paramserver.sharing.synchroniser import Grant, NetworkSynchroniser
from hpcbal.simulator.serving.clock import Clock
from hpcbal.simulator.sharing.cohorts import Cohorts
from hpcbal.simulator.sharing.job import SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.sharing.running_job import Progress, RunningJob
from hpcbal.simulator.sharing.start import Hears


class CohortedMachines:
    """See `Machines`.

    Args:
        clock: of the simulation.
        jobs: of the run.
        machines: by rank.
        turns, delays, warm_up, compute_noise, seed, unites_machines: see `simulate_sharing`.
        hears: is told what happens.
    """

    def __init__(
        self,
        clock: Clock,
        jobs: Sequence[SimulatedJob],
        machines: Mapping[int, SimulatedMachine],
        turns: Turns,
        delays: SharingDelays,
        warm_up: int,
        compute_noise: float,
        seed: int,
        unites_machines: bool,
        hears: Hears,
    ) -> None:
        self._clock, self._machines, self._delays, self._warm_up = clock, machines, delays, warm_up
        self._hears = hears
        self._network = NetworkSynchroniser() if turns.is_synchronised else None
        self._cohorts = Cohorts(
            clock, machines, turns.uses_queues, self._computed, self._sent, unites_machines
        )
        self._progress = {job.name: Progress(job, compute_noise, seed) for job in jobs}
        self._started: set[str] = set()
        self._running: dict[str, RunningJob] = {}

    def start(self, job: str, ranks: tuple[int, ...]) -> RunningJob:
        """See `Machines`."""
        run = RunningJob(
            self._progress[job],
            {rank: self._machines[rank] for rank in ranks},
            job not in self._started,
            self._delays,
            self._clock,
            self._cohorts,
            self._network,
            self._grant,
            self._warm_up,
            self._hears,
        )
        self._started.add(job)
        self._running[job] = run
        run.start()
        return run

    def used_s(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """See `Machines`."""
        self._cohorts.count()
        return self._cohorts.cpu_s, self._cohorts.network_s

    def _grant(self, grants: Sequence[Grant]) -> None:
        for name, ranks in grants:
            self._clock.after(self._delays.control_s, partial(self._running[name].communicate, ranks))

    def _computed(self, job: str, ranks: tuple[int, ...], seconds: float) -> None:
        self._running[job].has_computed(ranks, seconds)

    def _sent(self, job: str, ranks: tuple[int, ...], seconds: float) -> None:
        self._running[job].has_sent(ranks, seconds)
