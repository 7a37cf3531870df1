"""One start of a job on its machines, as the scheduler sees it: its machine and what it has reported."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from hpcbal.config import JobsConfig, SharedJobConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.contract import num_steps
from hpcbal.paramserver.engine.transport import NUM_STREAMS
from hpcbal.paramserver.machine.events import End
from hpcbal.paramserver.machine.job import JobMachine, JobSpec
from hpcbal.paramserver.machine.messages import TurnDone
from hpcbal.paramserver.machine.progress import Pace
from hpcbal.paramserver.sharing.profiling import IterationMeter, load_of
from hpcbal.paramserver.store.ownership import dealt_out, dealt_out_by_table
from hpcbal.policies.grouping import JobLoad
from hpcbal.runtime.paramserver.checkpoint import SavedJob
from hpcbal.runtime.paramserver.cutting import Cut
from hpcbal.runtime.paramserver.loading import LoadedJob
from hpcbal.runtime.paramserver.opening import stop_rule
from hpcbal.runtime.sharing.protocol import SpilledJob


@dataclass(slots=True)
class RunningJob:
    """A start of a job, until its executors have left their machines.

    Attributes:
        start: its number.
        config: of the job.
        machine: makes the job's decisions.
        meter: measures its iterations.
        row_growth: see `JobLoad`.
        on_machines: ranks whose executors have not left yet.
        end: how it ended; None: it runs.
        is_saving: whether a checkpoint has been asked for.
        began_s: when it started.
        loading_s: from there until its executors had their blocks; None: they have not yet.
        saving_s: of its last checkpoint; None: there was none.
        asked_to_save_s, asked_to_stop_s: when the scheduler last asked for a checkpoint, or for a stop.
        spilled: what it has on disk, by machine, as last heard.
        most_spilled_bytes: the most that it has had on all disks.
        measured_s: time of its last objective, or of the start.
        saved_s: time of its last checkpoint, or of the start.
    """

    start: int
    config: SharedJobConfig
    loaded: LoadedJob
    cut: Cut
    machine: JobMachine
    meter: IterationMeter
    on_machines: set[int]
    row_growth: float = 1.0
    end: End | None = None
    is_saving: bool = False
    began_s: float = field(default_factory=time.monotonic)
    loading_s: float | None = None
    saving_s: float | None = None
    spilled: dict[int, SpilledJob] = field(default_factory=dict)
    most_spilled_bytes: int = 0
    measured_s: float = field(default_factory=time.monotonic)
    saved_s: float = field(default_factory=time.monotonic)
    asked_to_save_s: float = field(default_factory=time.monotonic)
    asked_to_stop_s: float = field(default_factory=time.monotonic)
    _outlook: tuple[int, float] | None = None  # number of objectives, and the end that they let expect

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def workers(self) -> frozenset[int]:
        """Machines that have samples of the job."""
        return frozenset(self.machine.owners("data"))

    @property
    def is_iterating(self) -> bool:
        """Whether nothing but iterations goes on, the first ones excepted, which take longer."""
        return self.machine.is_iterating and self.meter.is_warm

    @property
    def machines(self) -> tuple[int, ...]:
        return self.machine.spec.executors

    def note_spilled(self, machine: int, spilled: SpilledJob) -> None:
        """A machine has told what it has on disk."""
        self.spilled[machine] = spilled
        self.most_spilled_bytes = max(self.most_spilled_bytes, self.spilled_bytes)

    @property
    def spilled_bytes(self) -> int:
        """On all disks."""
        return sum(each.num_bytes for each in self.spilled.values())

    @property
    def stop_s(self) -> float:
        """Seconds for which its turns have waited for a disk, mean of its machines."""
        return sum(each.stop_s for each in self.spilled.values()) / max(1, len(self.spilled))

    @property
    def read_s(self) -> float:
        """Seconds for which disks have read for it, mean of its machines."""
        return sum(each.read_s for each in self.spilled.values()) / max(1, len(self.spilled))

    @property
    def alpha(self) -> float:
        """Share of its data blocks that is on disk."""
        blocks = sum(each.blocks for each in self.spilled.values())
        return sum(each.on_disk for each in self.spilled.values()) / blocks if blocks else 0.0

    def note_phase(self) -> None:
        """Its machine has handled an event: the job may have begun to train."""
        if self.loading_s is None and self.machine.phase == "running":
            self.loading_s = time.monotonic() - self.began_s

    def note_turn(self, rank: int, turn: TurnDone) -> bool:
        """Measure a turn; returns whether that ended an iteration that counts."""
        return self.meter.note(rank, turn, time.monotonic())

    def load(self) -> JobLoad | None:
        """What is known of the job; None: it has not been measured yet."""
        average = self.meter.average
        if average is None:
            return None
        return load_of(
            self.name,
            average,
            machines=len(self.machines),
            data_blocks=self.cut.data,
            parameter_blocks=sum(self.cut.parameters),
            iterations_left=self._iterations_left(),
            dense_bytes=self.loaded.dense_bytes,
            row_growth=self.row_growth,
            loading_s=self.loading_s,
            saving_s=self.saving_s,
        )

    def _iterations_left(self) -> float:
        """Until its target, by its loss curve, or its last epoch; `stop.patience` may end it sooner."""
        pace, history = self.machine.spec.pace, self.machine.history
        stop = self.machine.spec.stop
        if self._outlook is None or self._outlook[0] != len(history):
            self._outlook = len(history), stop.expected_end(history, pace.objective_every)
        return stop.epochs_until(self._outlook[1], self.machine.epochs) * pace.steps_per_epoch


def next_start(last: int, live: Collection[int]) -> int:
    """Number a start so that the frames of no other start have its tags.

    Args:
        last: number of the last start.
        live: numbers of starts whose executors have not all left.

    Raises:
        InputError: so many starts are live that there are no more tags.
    """
    taken = {start % NUM_STREAMS for start in live}
    for start in range(last + 1, last + 1 + NUM_STREAMS):
        if start % NUM_STREAMS not in taken:
            return start
    raise InputError(
        f"{len(live)} jobs run at the same time, allowed: at most {NUM_STREAMS}; spread them over more runs"
    )


def start_of(
    number: int,
    run: JobsConfig,
    config: SharedJobConfig,
    loaded: LoadedJob,
    cut: Cut,
    saved: SavedJob | None,
    machines: tuple[int, ...],
) -> RunningJob:
    """A new start of a job: every machine gets even shares of samples and parameters.

    Args:
        number: of the start.
        run: the configuration.
        config: of the job.
        loaded: its app and data.
        cut: of its samples and tables.
        saved: the checkpoint from which it goes on; None: it begins.
        machines: ranks.
    """
    steps = num_steps(loaded.num_samples, config.mini_batch)
    pace = Pace(steps, config.staleness, config.stop.max_epochs, config.objective.every)
    machine = JobMachine(
        JobSpec(machines, pace, stop_rule(config)),
        dealt_out(cut.data, machines),
        dealt_out_by_table(cut.parameters, machines),
        None if saved is None else saved.number,
        () if saved is None else saved.history,
    )
    meter = IterationMeter(set(machine.owners("data")), run.schedule.warm_up)
    return RunningJob(number, config, loaded, cut, machine, meter, set(machines))
