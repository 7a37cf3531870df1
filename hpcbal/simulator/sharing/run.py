"""Simulate many jobs on the same machines, with the scheduler and the policies of a real run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcbal.collector import without_garbage_collection
from hpcbal.errors import HpcbalError, InputError
from hpcbal.paramserver.sharing import scheduler
from hpcbal.paramserver.sharing.scheduler import GroupingPolicy, Scheduler
from hpcbal.paramserver.sharing.synchroniser import Grant, NetworkSynchroniser
from hpcbal.policies.grouping import JobLoad
from hpcbal.simulator.serving.clock import NS_PER_S, Clock
from hpcbal.simulator.sharing.cohorts import Cohorts
from hpcbal.simulator.sharing.job import SharingDelays, SimulatedJob, SimulatedMachine, Turns, check
from hpcbal.simulator.sharing.record import JobTimes, SharingRun
from hpcbal.simulator.sharing.running_job import Progress, RunningJob
from hpcbal.simulator.sharing.watch import GroupWatch

MEASURED_AGAIN_EVERY = 8
"""Iterations after which the scheduler hears of a job's averages again, as in a real run."""

Distort = Callable[[JobLoad], JobLoad]
"""What the scheduler believes of a job that has been measured."""


def simulate_sharing(
    jobs: Sequence[SimulatedJob],
    machines: Sequence[SimulatedMachine],
    policy: GroupingPolicy,
    *,
    turns: Turns | None = None,
    delays: SharingDelays | None = None,
    warm_up: int = 1,
    profile_iterations: int = 3,
    compute_noise: float = 0.0,
    seed: int = 0,
    distort: Distort | None = None,
    unites_machines: bool = True,
) -> SharingRun:
    """Run jobs to their end in virtual time, subtask by subtask.

    `Scheduler`, its policy, `NetworkSynchroniser`, `SubtaskQueue` and `IterationMeter` decide, order and
    measure as in a real run ([PS] Sec. 4.3); only time is simulated. The model of group iterations ([PS] Eq.
    4.1) has no part in it, except where the policy uses it. The same arguments give the same result.

    Left out: objectives, checkpoints beside those of moves, and time that the scheduler takes to decide. A
    worker uses its own link only, at the speed of the slowest link of its job: exact if the machines of a job
    are alike in what else they send.

    Args:
        jobs: at least one, with unique names.
        machines: of ranks 1, 2, ...; at least one.
        policy: groups jobs; new for each run.
        turns: whether jobs take turns; None: as with `harmony`.
        delays: None: none.
        warm_up: iterations of a job that are not measured, each time it starts, >= 0.
        profile_iterations: measured iterations that a job needs before it is grouped by them, >= 1.
        compute_noise: computing of an iteration takes at most this share longer or shorter, on all machines
            of the job alike; 0 to below 1.
        seed: of the noise.
        distort: None: the scheduler believes what is measured.
        unites_machines: whether machines that are alike are simulated once; see `cohorts`.

    Raises:
        InputError: an argument is out of range.
        HpcbalError: the policy lets jobs wait for ever.
    """
    check("jobs", len(jobs), len(jobs) >= 1, "at least 1")
    check("machines", len(machines), len(machines) >= 1, "at least 1")
    check("warm_up", warm_up, warm_up >= 0, ">= 0")
    check("profile_iterations", profile_iterations, profile_iterations >= 1, ">= 1")
    check("compute_noise", compute_noise, 0 <= compute_noise < 1, "0 to below 1")
    names = [job.name for job in jobs]
    if len(set(names)) != len(names):
        raise InputError(f"jobs: got {sorted(names)}, allowed: unique names")
    simulation = _Simulation(
        jobs,
        dict(enumerate(machines, 1)),
        policy,
        turns or Turns(),
        delays or SharingDelays(),
        warm_up,
        profile_iterations,
        compute_noise,
        seed,
        distort,
        unites_machines,
    )
    with without_garbage_collection():
        return simulation.run()


@dataclass(slots=True)
class _Story:
    """What a job leaves behind; see `JobTimes`."""

    progress: Progress
    began_s: float | None = None
    ended_s: float | None = None
    machine_s: float = 0.0
    num_starts: int = 0
    still_s: float = 0.0
    rested_s: float | None = None


class _Simulation:
    """Performs what the `Scheduler` decides, as the master of a run does; see `simulate_sharing`."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        machines: Mapping[int, SimulatedMachine],
        policy: GroupingPolicy,
        turns: Turns,
        delays: SharingDelays,
        warm_up: int,
        profile_iterations: int,
        compute_noise: float,
        seed: int,
        distort: Distort | None,
        unites_machines: bool,
    ) -> None:
        self._machines, self._delays, self._warm_up = machines, delays, warm_up
        self._profile_iterations, self._distort = profile_iterations, distort
        self._clock = Clock()
        self._network = NetworkSynchroniser() if turns.is_synchronised else None
        self._cohorts = Cohorts(
            self._clock, machines, turns.uses_queues, self._computed, self._sent, unites_machines
        )
        self._scheduler = Scheduler(tuple(machines), policy)
        self._stories = {job.name: _Story(Progress(job, compute_noise, seed)) for job in jobs}
        self._running: dict[str, RunningJob] = {}
        self._watch = GroupWatch()
        self._num_left = len(jobs)
        self._num_decisions = 0
        self._moving_machine_s = 0.0

    def run(self) -> SharingRun:
        arrivals: dict[float, list[SimulatedJob]] = {}
        for story in self._stories.values():
            arrivals.setdefault(story.progress.job.arrives_s, []).append(story.progress.job)
        for arrives_s, some in arrivals.items():
            event = scheduler.Arrived(tuple(job.name for job in some), {job.name: job.memory for job in some})
            self._clock.at(round(arrives_s * NS_PER_S), lambda event=event: self._schedule(event))  # type: ignore[misc]
        self._clock.run(lambda: not self._num_left)
        if self._num_left:
            waiting = [name for name, story in self._stories.items() if story.ended_s is None]
            raise HpcbalError(
                f"the simulated run stands still at {self._clock.now_s:.6g} s; these jobs are not done: "
                f"{', '.join(waiting)}"
            )
        self._cohorts.count()
        return SharingRun(
            tuple(self._times(story) for story in self._stories.values()),
            tuple(self._watch.groups),
            self._num_decisions,
            self._moving_machine_s,
            self._cohorts.cpu_s,
            self._cohorts.network_s,
        )

    def _times(self, story: _Story) -> JobTimes:
        job = story.progress.job
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

    # ---- the scheduler -------------------------------------------------------------------------

    def _schedule(self, event: scheduler.Event) -> None:
        instructions, now = self._scheduler.handle(event), self._scheduler
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
        run = RunningJob(
            story.progress,
            {rank: self._machines[rank] for rank in ranks},
            story.num_starts == 1,
            self._delays,
            self._clock,
            self._cohorts,
            self._network,
            self._warm_up,
            self,
        )
        self._running[name] = run
        run.start()
        if story.rested_s is not None:
            waited_s = self._clock.now_s - max(story.rested_s, self._watch.placed_s(name))
            self._note_still(story, run, waited_s + run.loading_s)

    def _note_still(self, story: _Story, run: RunningJob, seconds: float) -> None:
        """A job has stood still to move, or is about to."""
        story.still_s += seconds
        group = next((group for group in self._scheduler.groups if run.name in group.jobs), None)
        self._moving_machine_s += seconds * len(run.machines) / (1 if group is None else len(group.jobs))

    def left(self, run: RunningJob) -> None:
        """See `Hears`."""
        story, now_s = self._stories[run.name], self._clock.now_s
        story.machine_s += (now_s - run.began_s) * len(run.machines)
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

    def grant(self, grants: Sequence[Grant]) -> None:
        """See `Hears`."""
        for name, ranks in grants:
            run = self._running[name]
            self._clock.after(self._delays.control_s, lambda run=run, ranks=ranks: run.communicate(ranks))  # type: ignore[misc]

    def iterated(self, run: RunningJob, is_measured: bool) -> None:
        """See `Hears`."""
        measured = run.meter.num_measured - self._profile_iterations
        if is_measured and measured >= 0 and measured % MEASURED_AGAIN_EVERY == 0 and not run.is_done:
            load = run.load()
            self._schedule(scheduler.Profiled(run.name, self._distort(load) if self._distort else load))

    def _computed(self, job: str, ranks: tuple[int, ...], seconds: float) -> None:
        self._running[job].has_computed(ranks, seconds)

    def _sent(self, job: str, ranks: tuple[int, ...], seconds: float) -> None:
        self._running[job].has_sent(ranks, seconds)
