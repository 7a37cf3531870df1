"""All machines of a run and the jobs on them, frame by frame, as the engine does it on emulated machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbal.paramserver.coscheduling.synchroniser import Grant, NetworkSynchroniser
from hpcbal.simulator.coscheduling.job import SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.coscheduling.started_job import (
    Checkpoint,
    Hears,
    StartedJob,
    Surroundings,
    VirtualMachine,
)
from hpcbal.simulator.paramserver.clock import Clock, Cores, Delay
from hpcbal.simulator.paramserver.job import ServingJob
from hpcbal.simulator.paramserver.network import Network


class VirtualCluster:
    """All machines of a run, and the jobs on them.

    Args:
        clock: of the simulation.
        jobs: of the run.
        machines: by rank.
        turns, delays, warm_up, seed, frames: see `simulate_sharing`.
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
        seed: int,
        frames: Mapping[str, ServingJob] | None,
        hears: Hears,
    ) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._frames = {name: replace(each, seed=seed) for name, each in (frames or {}).items()}
        self._checkpoints = {job.name: Checkpoint() for job in jobs}
        bandwidths = {rank: machine.bandwidth for rank, machine in machines.items()}
        sending, notice = Delay(delays.send_s, f"{seed} send"), Delay(delays.notice_s, f"{seed} notice")
        payload = Delay(delays.payload_s, f"{seed} payload") if delays.payload_s else None
        host = Cores(clock, delays.host_cores)
        self._around = Surroundings(
            clock,
            Network(clock, bandwidths, sending, notice, payload),
            machines,
            {rank: VirtualMachine(clock, turns, host) for rank in machines},
            NetworkSynchroniser(),
            delays,
            warm_up,
            self._grant,
            hears,
            {},
        )

    def start(self, job: str, ranks: tuple[int, ...]) -> StartedJob:
        """Start a job, or let it go on from its last checkpoint. What follows happens later."""
        run = StartedJob(self._jobs[job], self._frames.get(job), self._checkpoints[job], ranks, self._around)
        self._around.running[job] = run
        self._around.clock.after(0.0, run.start)
        return run

    def used_s(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """By rank, for how long cores and link have been used until now."""
        used = {rank: machine.used_s() for rank, machine in self._around.shared.items()}
        return {rank: each[0] for rank, each in used.items()}, {rank: each[1] for rank, each in used.items()}

    def _grant(self, grants: Iterable[Grant]) -> None:
        for name, ranks in grants:
            self._around.running[name].may_communicate(ranks)
