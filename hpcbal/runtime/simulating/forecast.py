"""Simulate a parameter-server job as a run would play it: roles, changes of executors, and its tuner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.master.events import Reconfigure
from hpcbal.paramserver.master.job import JobMachine
from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.planning.paramserver import MeasuredEpoch, machines_of
from hpcbal.runtime.jobs.executors import ExecutorSupply, first_owners
from hpcbal.runtime.jobs.loading import LoadedJob, first_cut
from hpcbal.runtime.jobs.tuning import Tuner, tuner_of
from hpcbal.runtime.simulating.sizes import serving_job
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.master import ChangeTime
from hpcbal.simulator.paramserver.run import simulate_job

MOST_SHARING = 16
"""Up to so many executors a simulation lets messages share links. Each message that begins or ends then
changes the speeds of all others, which takes hours for hundreds of executors: they get links in turn."""

STEADY_EPOCHS = 4
"""Epochs of a simulation that measures an epoch of one configuration; the first and the last are left out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One configuration.

    Attributes:
        num_workers, num_servers: executors that own samples, and that own parameters.
        epoch_s: seconds of an epoch without its objective, while nothing changes.
    """

    num_workers: int
    num_servers: int
    epoch_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """One reconfiguration.

    Attributes:
        start_s: since the start of the job.
        seconds: from the decision to the last block.
        why: for people.
        num_bytes: of the blocks that moved, samples and their state included.
        after: the configuration that follows.
        predicted_gain: predicted saving, as a share of the epoch time; None if it was not a matter of gain.
        simulated_gain: the same, of the simulated epochs before and after.
    """

    start_s: float
    seconds: float
    why: str
    num_bytes: int
    after: Shape
    predicted_gain: float | None
    simulated_gain: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """A simulated job.

    Attributes:
        num_executors: that were started.
        num_epochs: that it took.
        seconds: from the start to the end.
        executor_seconds: the same, times the executors that the job had at a time.
        busy: share of the time of all executors, 0..1, in which workers compute.
        start, end: its configurations.
        changes: in order.
    """

    num_executors: int
    num_epochs: int
    seconds: float
    executor_seconds: float
    busy: float
    start: Shape
    end: Shape
    changes: tuple[Change, ...]


class Watching:
    """The tuner of a run, and the schedule of its executors; see `Watcher` of the simulator.

    Args:
        tuner: of the job.
        machine: of the job, which is only looked at.
        supply: says which executors the job has.

    Attributes:
        uses: of each change by the schedule, completed epochs and the number of executors from then on.
    """

    def __init__(self, tuner: Tuner, machine: JobMachine, supply: ExecutorSupply) -> None:
        self._tuner, self._machine, self._supply = tuner, machine, supply
        self.uses: list[tuple[int, int]] = []

    def note_turn(self, executor: int, turn: TurnDone, now_s: float) -> None:
        """A worker has taken a turn."""
        self._tuner.note_turn(executor, turn, now_s)

    def note_epoch(self, now_s: float) -> None:
        """An epoch has ended."""
        self._tuner.note_epoch(now_s)

    def propose(self) -> Reconfigure | None:
        """A reconfiguration that pays, or that cannot wait; None if there is none."""
        if self._tuner.follow(self._supply.in_use(self._machine.epochs)):
            self.uses.append((self._machine.epochs, len(self._tuner.in_use)))
        return self._tuner.propose()

    def note_change(self) -> None:
        """A reconfiguration is over."""
        self._tuner.note_change()


Owners = tuple[tuple[int, ...], tuple[int, ...]]
"""Rank of each data block, and of each parameter block."""


def simulates_shared_links(config: ParamServerConfig, num_executors: int) -> bool:
    """Whether messages share links in a simulation of so many executors, as `links` says that they do."""
    return config.link_model == "shared" and num_executors <= MOST_SHARING


def forecast_job(
    config: ParamServerConfig,
    loaded: LoadedJob,
    num_executors: int,
    measured: MeasuredEpoch | None,
    delays: Delays,
) -> JobForecast:
    """Simulate the job of a file from its start to `stop.max_epochs`.

    Args:
        config: the file.
        loaded: its app and its data.
        num_executors: all ranks but the master's; at least two.
        measured: by an earlier run; None: there is none.
        delays: that pass beside computing and links.

    Raises:
        InputError: how fast executors are is not known, or the file does not fit so many.
        UserCodeError: the app or the dataset raises.
    """
    machines = [
        ServingMachine(each.seconds_per_sample, each.bandwidth)
        for each in machines_of(config, num_executors, measured)
    ]
    ranks = range(1, num_executors + 1)
    supply = ExecutorSupply(config, ranks, None)
    in_use = supply.in_use(0)
    cut = first_cut(config, loaded, num_executors)
    owners = first_owners(config, cut, in_use, None)
    job = serving_job(config, config.seed, loaded, cut, measured)
    watching: list[Watching] = []

    def watch(machine: JobMachine) -> Watching:
        tuner = tuner_of(config, machine, loaded, cut, in_use)
        watching.append(Watching(tuner, machine, supply))
        return watching[-1]

    are_shared = simulates_shared_links(config, num_executors)
    shape = partial(_shape, job, machines, delays=delays, are_shared=are_shared)
    run = simulate_job(job, machines, *owners, delays=delays, watcher=watch, are_shared=are_shared)
    start = end = shape(owners)
    changes = []
    for change in run.changes:
        owners = _owners_after(owners, change.change)
        before, end = end, shape(owners)
        changes.append(_change(job, change, before, end))
    ends = [0.0, *(epoch.end_s for epoch in run.epochs)]
    return JobForecast(
        num_executors,
        len(run.epochs),
        ends[-1],
        _executor_seconds(ends, [(0, len(in_use)), *watching[0].uses]),
        sum(turn.report.compute_s for turn in run.turns) / (num_executors * ends[-1]),
        start,
        end,
        tuple(changes),
    )


def _executor_seconds(ends: Sequence[float], uses: Sequence[tuple[int, int]]) -> float:
    """Seconds of executors, from the ends of epochs 0, 1, ... and the number in use from each epoch on."""
    until = [*(epoch for epoch, _ in uses[1:]), len(ends) - 1]
    return sum(count * (ends[stop] - ends[epoch]) for (epoch, count), stop in zip(uses, until, strict=True))


def _shape(
    job: ServingJob, machines: Sequence[ServingMachine], owners: Owners, delays: Delays, are_shared: bool
) -> Shape:
    steady = replace(job, max_epochs=STEADY_EPOCHS, objective_every=STEADY_EPOCHS)
    run = simulate_job(steady, machines, *owners, delays=delays, are_shared=are_shared)
    return Shape(len(set(owners[0])), len(set(owners[1])), run.steady_epoch_s)


def _owners_after(owners: Owners, change: Reconfigure) -> Owners:
    data, parameters = map(list, owners)
    for move in change.moves:
        of_sort = data if move.what == "data" else parameters
        for block in move.blocks:
            of_sort[block] = move.destination
    return tuple(data), tuple(parameters)


def _change(job: ServingJob, done: ChangeTime, before: Shape, after: Shape) -> Change:
    num_bytes = 0.0
    for move in done.change.moves:
        for block in move.blocks:
            if move.what == "data":
                num_bytes += job.cut.size(block) * job.sample_bytes
            else:
                table, num_rows = job.layout.shape_of(block)
                num_bytes += num_rows * table.row_bytes
    return Change(
        done.start_s,
        done.end_s - done.start_s,
        done.change.why,
        round(num_bytes),
        after,
        done.change.predicted_gain,
        1.0 - after.epoch_s / before.epoch_s,
    )
