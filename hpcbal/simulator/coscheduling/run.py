"""Simulate many jobs on the same machines, with the scheduler and the policies of a real run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hpcbal.errors import HpcbalError, InputError
from hpcbal.garbage import without_garbage_collection
from hpcbal.paramserver.coscheduling import scheduler
from hpcbal.paramserver.coscheduling.scheduler import GroupingPolicy, JobScheduler
from hpcbal.paramserver.coscheduling.synchroniser import Grant, NetworkSynchroniser
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.simulator.coscheduling.job import SharingDelays, SimulatedJob, SimulatedMachine, Turns, check
from hpcbal.simulator.coscheduling.record import GroupRecorder, JobTimes, SharingRun
from hpcbal.simulator.coscheduling.started_job import (
    Checkpoint,
    Hears,
    StartedJob,
    Surroundings,
    VirtualMachine,
)
from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock, Cores, Delay
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


Distort = Callable[[JobLoad], JobLoad]
"""Turns the measured load of a job into the one that the scheduler believes."""


def simulate_sharing(
    jobs: Sequence[SimulatedJob],
    machines: Sequence[SimulatedMachine],
    policy: GroupingPolicy,
    *,
    turns: Turns | None = None,
    delays: SharingDelays | None = None,
    warm_up: int = 1,
    profile_iterations: int = 2,
    seed: int = 0,
    distort: Distort | None = None,
    frames: Mapping[str, ServingJob] | None = None,
) -> SharingRun:
    """Run jobs to their end in virtual time, subtask by subtask.

    `JobScheduler`, its policy, `NetworkSynchroniser`, `SubtaskQueue` and `IterationMeter` decide, order and
    measure as in a real run ([PS] Sec. 4.3); only time is simulated. The model of group iterations ([PS] Eq.
    4.1) has no part in it, except where the policy uses it. The same arguments give the same result.

    Each job has a `JobMachine` and a `Worker` on each machine, as in a real run: objectives and checkpoints
    are simulated as well. With `frames`, so are first pushes, and every frame takes the links of the two
    machines between which it travels. Without, a worker uses its own link only, at the speed of the slowest
    link of its job: exact if the machines of a job are alike in what else they send; messages all take
    `control_s`. Left out: the time in which apps compute first pushes and objectives, limits of memory, and
    time that the scheduler takes to decide.

    Args:
        jobs: at least one, with unique names.
        machines: of ranks 1, 2, ...; at least one.
        policy: groups jobs; new for each run.
        turns: whether jobs take turns; None: as with `harmony`.
        delays: None: none.
        warm_up: iterations of a job that are not measured, each time it starts, >= 0.
        profile_iterations: measured iterations that a job needs before it is grouped by them, >= 1.
        seed: of the delays of frames.
        distort: None: the scheduler believes what is measured.
        frames: each job as far as its frames go, by name; None: frames are not simulated.

    Raises:
        InputError: an argument is out of range.
        HpcbalError: the policy lets jobs wait for ever.
    """
    check("jobs", len(jobs), len(jobs) >= 1, "at least 1")
    check("machines", len(machines), len(machines) >= 1, "at least 1")
    check("warm_up", warm_up, warm_up >= 0, ">= 0")
    check("profile_iterations", profile_iterations, profile_iterations >= 1, ">= 1")
    names = [job.name for job in jobs]
    if len(set(names)) != len(names):
        raise InputError(f"jobs: got {sorted(names)}, allowed: unique names")
    if frames is not None:
        check("frames", sorted(frames), frames.keys() == set(names), "the names of all jobs")
    clock, by_rank = Clock(), dict(enumerate(machines, 1))
    delays = delays or SharingDelays()
    cluster_of = partial(
        VirtualCluster, clock, jobs, by_rank, turns or Turns(), delays, warm_up, seed, frames
    )
    simulation = _Simulation(
        jobs, clock, tuple(by_rank), cluster_of, policy, profile_iterations, distort, delays.open_s
    )
    with without_garbage_collection():
        return simulation.run()


@dataclass(slots=True)
class _Story:
    """The record of a job while it grows; see `JobTimes`."""

    job: SimulatedJob
    began_s: float | None = None
    ended_s: float | None = None
    machine_s: float = 0.0
    num_starts: int = 0
    still_s: float = 0.0
    rested_s: float | None = None
    still_since_s: float | None = None


class _Simulation:
    """Performs what the `JobScheduler` decides, as the master of a run does; see `simulate_sharing`."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        clock: Clock,
        ranks: tuple[int, ...],
        cluster_of: Callable[[Hears], VirtualCluster],
        policy: GroupingPolicy,
        profile_iterations: int,
        distort: Distort | None,
        open_s: float,
    ) -> None:
        self._profile_iterations, self._distort = profile_iterations, distort
        self._clock = clock
        self._cluster = cluster_of(self)
        self._scheduler = JobScheduler(ranks, policy)
        self._open_s, self._opened_s = open_s, 0.0
        self._opening: list[SimulatedJob] = []
        self._stories = {job.name: _Story(job) for job in jobs}
        self._running: dict[str, StartedJob] = {}
        self._watch = GroupRecorder()
        self._num_left = len(jobs)
        self._num_decisions = 0
        self._moving_machine_s = 0.0

    def run(self) -> SharingRun:
        arrivals: dict[float, list[SimulatedJob]] = {}
        for story in self._stories.values():
            arrivals.setdefault(story.job.arrives_s, []).append(story.job)
        for arrives_s, some in arrivals.items():
            self._clock.at(round(arrives_s * NS_PER_S), partial(self._submitted, some))
        self._clock.run(lambda: not self._num_left)
        if self._num_left:
            waiting = [name for name, story in self._stories.items() if story.ended_s is None]
            raise HpcbalError(
                f"the simulated run stands still at {self._clock.now_s:.6g} s; these jobs are not done: "
                f"{', '.join(waiting)}"
            )
        cpu_s, network_s = self._cluster.used_s()
        return SharingRun(
            tuple(self._times(story) for story in self._stories.values()),
            tuple(self._watch.groups),
            self._num_decisions,
            self._moving_machine_s,
            cpu_s,
            network_s,
        )

    def _times(self, story: _Story) -> JobTimes:
        job = story.job
        assert story.began_s is not None
        assert story.ended_s is not None
        return JobTimes(
            job.name,
            job.arrives_s,
            story.began_s,
            story.ended_s,
            story.machine_s,
            story.num_starts - 1,
            story.still_s,
        )

    def _submitted(self, jobs: Sequence[SimulatedJob]) -> None:
        """Open jobs, after those that were submitted before; they arrive once none is being opened."""
        self._opening += jobs
        self._opened_s = max(self._opened_s, self._clock.now_s) + self._open_s * len(jobs)
        self._clock.at(round(self._opened_s * NS_PER_S), self._opened)

    def _opened(self) -> None:
        if self._clock.now_ns < round(self._opened_s * NS_PER_S) or not self._opening:
            return  # others have been submitted meanwhile
        some, self._opening = self._opening, []
        memory = {job.name: job.memory for job in some}
        self._schedule(scheduler.Arrived(tuple(memory), memory))

    # ---- the scheduler -------------------------------------------------------------------------

    def _schedule(self, event: scheduler.Event) -> None:
        instructions, now = self._scheduler.handle(event, self._clock.now_s), self._scheduler
        if not isinstance(event, scheduler.Profiled) or instructions:
            self._watch.look(now.groups, now.loads, self._running, self._clock.now_s)
        for instruction in instructions:
            match instruction:
                case scheduler.Grouped():
                    self._num_decisions += 1
                case scheduler.StartJob(name, machines):
                    self._start(name, machines)
                case scheduler.StopJob(name):
                    self._running[name].stop()

    def _start(self, name: str, ranks: tuple[int, ...]) -> None:
        story = self._stories[name]
        story.num_starts += 1
        if story.began_s is None:
            story.began_s = self._clock.now_s
        if story.rested_s is not None:
            story.still_since_s = max(story.rested_s, self._watch.placed_s(name))
        self._running[name] = self._cluster.start(name, ranks)

    def _note_still(self, story: _Story, run: StartedJob, seconds: float) -> None:
        """A job has stood still to move, or is about to."""
        story.still_s += seconds
        group = next((group for group in self._scheduler.groups if run.name in group.jobs), None)
        self._moving_machine_s += seconds * len(run.ranks) / (1 if group is None else len(group.jobs))

    def left(self, run: StartedJob) -> None:
        """See `Hears`."""
        story, now_s = self._stories[run.name], self._clock.now_s
        story.machine_s += (now_s - run.began_s) * len(run.ranks)
        if run.is_done:
            self._watch.close_of(run.name, self._running, now_s)
            del self._running[run.name]
            story.ended_s = now_s
            self._num_left -= 1
            self._schedule(scheduler.Ended(run.name))
        else:
            self._note_still(story, run, run.saving_s)
            del self._running[run.name]
            story.rested_s = now_s
            self._schedule(scheduler.Rested(run.name))

    # ---- jobs ----------------------------------------------------------------------------------

    def loaded(self, run: StartedJob) -> None:
        """See `Hears`."""
        story = self._stories[run.name]
        if story.still_since_s is not None:
            self._note_still(story, run, self._clock.now_s - story.still_since_s)
            story.still_since_s = None

    def iterated(self, run: StartedJob, is_measured: bool) -> None:
        """See `Hears`."""
        if is_measured and run.meter.suffices(self._profile_iterations) and not run.is_done:
            load = run.load()
            self._schedule(scheduler.Profiled(run.name, self._distort(load) if self._distort else load))
