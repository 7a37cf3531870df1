"""One job of a run, from its file to its end, and one of its starts on some ranks."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.events.history import EpochRecord
from hpcbal.paramserver.api.batch import num_steps
from hpcbal.paramserver.coscheduling.profiling import IterationMeter, load_of
from hpcbal.paramserver.engine.wire import NUM_STREAMS
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import End
from hpcbal.paramserver.master.job import JobMachine, JobSpec
from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.runtime.health.silence import stop_limit_s
from hpcbal.runtime.jobs.checkpoint import SavedJob
from hpcbal.runtime.jobs.loading import Cut, JobConfig, LoadedJob, check_saved, first_cut
from hpcbal.runtime.jobs.messages import SpilledJob
from hpcbal.runtime.jobs.needs import Needs
from hpcbal.telemetry.files.run_directory import RunDirectory


@dataclass(eq=False, slots=True)
class Job:
    """A job over all its starts.

    Attributes:
        config: of the job.
        seed: of its first values and random draws.
        saved: the last checkpoint; None: there is none.
        loaded: rank 0's app and data; None: they are not open.
        cut: of its samples and tables, once it is loaded.
        needs: estimated of its ranks, once it is loaded; None where it has them for itself.
        start: on ranks; None: it is on none.
        state: `expected` until it arrives, `waiting`, `training`, `done` or `failed`.
        epochs, history: completed epochs, and one record for each objective.
        cause, detail: of a failure: one word, and text for users.
        earlier_s: wall time in earlier starts of the run.
        began_s, ended_s: when it arrived in this start of the run, and when it was over.
        epoch_began_s: when its epoch began.
    """

    config: JobConfig
    seed: int
    saved: SavedJob | None = None
    loaded: LoadedJob | None = None
    cut: Cut | None = None
    needs: Needs | None = None
    start: Start | None = None
    state: str = "expected"
    epochs: int = 0
    history: tuple[EpochRecord, ...] = ()
    cause: str = ""
    detail: str = ""
    earlier_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    epoch_began_s: float = field(default_factory=time.monotonic)
    _used_s: float = 0.0  # rank-seconds until `_used_until_s`
    _used_until_s: float = 0.0
    _num_ranks: int = 0  # that it has used since

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def arrives_s(self) -> float:
        """When it is submitted, after the start of the run."""
        return self.config.arrives_s

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")

    @property
    def main_metric(self) -> str:
        """The metric that its stop rule watches; empty if it is the app's first one and not known yet."""
        metrics = self.history[-1].metrics if self.history else {}
        return self.config.stop.monitor or next(iter(metrics), "")

    @property
    def wall_s(self) -> float:
        """Seconds from its arrival to its end, or until now, over all starts of the run."""
        if self.began_s is None:
            return self.earlier_s
        return self.earlier_s + (self.ended_s or time.monotonic()) - self.began_s

    @property
    def used_s(self) -> float:
        """Rank-seconds until now, over all starts of the run."""
        return self._used_s + (time.monotonic() - self._used_until_s) * self._num_ranks

    def use(self, num_ranks: int, earlier_s: float = 0.0) -> None:
        """Count this many ranks from now on.

        Args:
            num_ranks: that the job may use.
            earlier_s: rank-seconds of earlier starts of the run.
        """
        self._used_s = self.used_s + earlier_s
        self._used_until_s, self._num_ranks = time.monotonic(), num_ranks

    def leave(self, end: End) -> None:
        """Note that the job leaves its ranks, or has failed before it was on any."""
        if self.start is not None:
            self.epochs = max(self.epochs, self.start.machine.epochs)
            self.history = self.start.machine.history
        self.start = None
        self.state = "waiting" if end.outcome == "suspended" else end.outcome
        self.cause, self.detail = end.cause, end.detail
        if self.is_over:
            self.ended_s, self.loaded = time.monotonic(), None
        self.use(0)

    def cut_of(self, loaded: LoadedJob, num_ranks: int, run: RunDirectory) -> Cut:
        """Return how the job is cut: as its checkpoint says, or by its file.

        Args:
            loaded: its app and data.
            num_ranks: of the run, without the scheduler.
            run: the run's directory.

        Raises:
            InputError: if the file asks for blocks that there cannot be.
            OutputError: if the checkpoint is of other data.
        """
        if self.saved is None:
            return first_cut(self.config, loaded, num_ranks)
        check_saved(self.saved, loaded.fingerprint(self.seed), run.job(self.name))
        return Cut.of_saved(self.saved)

    def begin(self, number: int, ranks: Sequence[int], owners: Owners, warm_up: int = 0) -> Start:
        """Start the job, or let it go on from its checkpoint; it is loaded and on no ranks.

        Args:
            number: of the start, see `next_start`.
            ranks: of its executors, ascending.
            owners: rank that owns each data block, and each parameter block.
            warm_up: iterations that are not measured.
        """
        assert self.loaded is not None
        assert self.cut is not None
        saved = self.saved
        machine = JobMachine(
            JobSpec(tuple(ranks), pace_of(self.config, self.loaded.num_samples), stop_rule(self.config)),
            *owners,
            None if saved is None else saved.number,
            () if saved is None else saved.history,
        )
        meter = IterationMeter(set(machine.owners("data")), warm_up)
        self.start = Start(number, self, machine, meter, set(ranks))
        self.state, self.cause, self.detail = "training", "", ""
        self.epoch_began_s = time.monotonic()
        self.use(len(ranks))
        return self.start


Owners = tuple[Sequence[int], Sequence[int]]
"""Rank that owns each data block, and each parameter block."""


def jobs_of(config: ParamServerConfig | JobsConfig) -> dict[str, Job]:
    """Return the jobs of a file by name, in its order."""
    jobs = config.jobs_by_name.items()
    return {name: Job(job, config.seed if job.seed is None else job.seed) for name, job in jobs}


@dataclass(eq=False, slots=True)
class Start:
    """A start of a job, until its executors have left their ranks.

    Attributes:
        number: unique in this start of the run.
        job: the job.
        machine: makes the job's decisions.
        meter: measures its iterations.
        on_ranks: ranks whose executors have not left yet.
        end: how it ended; None: it runs.
        is_saving: whether a checkpoint has been asked for.
        began_s: when it started.
        loading_s: from there until its executors had their blocks; None: they have not yet.
        saving_s: of its last checkpoint; None: there was none.
        asked_to_save_s, asked_to_stop_s: when the scheduler last asked for a checkpoint, or for a stop.
        spilled: what it has on disk, by rank, as last heard.
        most_spilled_bytes: the most that it has had on all disks.
        measured_s: time of its last objective, or of the start.
        saved_s: time of its last checkpoint, or of the start.
        heard_s: when an executor last reported something, or it was asked to stop.
        longest_silence_s: the longest time between two reports before it was to stop.
    """

    number: int
    job: Job
    machine: JobMachine
    meter: IterationMeter
    on_ranks: set[int]
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
    heard_s: float = field(default_factory=time.monotonic)
    longest_silence_s: float = 0.0
    _expected_end: tuple[int, float] | None = None  # number of objectives, and the epoch they let expect

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of its executors."""
        return self.machine.spec.executors

    @property
    def workers(self) -> frozenset[int]:
        """Ranks that have samples of the job."""
        return frozenset(self.machine.owners("data"))

    @property
    def has_begun(self) -> bool:
        """Whether its executors have their blocks and first values."""
        return self.machine.phase not in ("new", "loading", "initialising")

    @property
    def is_iterating(self) -> bool:
        """Whether nothing but iterations goes on, the first ones excepted, which take longer."""
        return self.machine.is_iterating and self.meter.is_warm

    def note_spilled(self, rank: int, spilled: SpilledJob) -> None:
        """Note what a rank has on disk."""
        self.spilled[rank] = spilled
        self.most_spilled_bytes = max(self.most_spilled_bytes, self.spilled_bytes)

    @property
    def spilled_bytes(self) -> int:
        """Bytes on all disks."""
        return sum(each.num_bytes for each in self.spilled.values())

    @property
    def stop_s(self) -> float:
        """Seconds for which its turns have waited for a disk, mean of its ranks."""
        return sum(each.stop_s for each in self.spilled.values()) / max(1, len(self.spilled))

    @property
    def read_s(self) -> float:
        """Seconds for which disks have read for it, mean of its ranks."""
        return sum(each.read_s for each in self.spilled.values()) / max(1, len(self.spilled))

    @property
    def alpha(self) -> float:
        """Share of its data blocks that is on disk."""
        blocks = sum(each.blocks for each in self.spilled.values())
        return sum(each.on_disk for each in self.spilled.values()) / blocks if blocks else 0.0

    def note_report(self, *, is_stopping: bool) -> None:
        """Note that an executor has reported something.

        Args:
            is_stopping: whether the run is to stop; silences from then on do not count as usual.
        """
        now_s = time.monotonic()
        if not is_stopping:
            self.longest_silence_s = max(self.longest_silence_s, now_s - self.heard_s)
        self.heard_s = now_s

    def leave_out(self, busy_s: float, now_s: float) -> None:
        """Count no silence in the last `busy_s` seconds until `now_s`, in which nobody could listen."""
        self.heard_s = min(now_s, self.heard_s + busy_s)

    def ask_to_stop(self) -> None:
        """Note that it is asked to stop; a silence counts from then on."""
        self.asked_to_stop_s = self.heard_s = time.monotonic()

    def held_up_s(self, reason: str) -> float:
        """Return for how long it has been silent since it was to stop, if that is too long; otherwise 0.

        Writing a checkpoint may take any time.

        Args:
            reason: why it is to stop.
        """
        silent_s = time.monotonic() - self.heard_s
        is_too_long = silent_s > stop_limit_s(reason, self.longest_silence_s)
        return silent_s if is_too_long and self.machine.phase not in ("saving", "writing") else 0.0

    def note_phase(self) -> None:
        """Note, after its machine has handled an event, whether the job has begun to train."""
        if self.loading_s is None and self.machine.phase == "running":
            self.loading_s = time.monotonic() - self.began_s

    def note_turn(self, rank: int, turn: TurnDone) -> bool:
        """Measure a turn; returns whether that ended an iteration that counts."""
        return self.meter.note(rank, turn, time.monotonic())

    def load(self) -> JobLoad | None:
        """Return what is known of the job; None: it has not been measured yet."""
        average, job = self.meter.average, self.job
        if average is None:
            return None
        assert job.loaded is not None
        assert job.cut is not None
        return load_of(
            job.name,
            average,
            machines=len(self.ranks),
            data_blocks=job.cut.data,
            parameter_blocks=sum(job.cut.parameters),
            iterations_left=self._iterations_left(),
            dense_bytes=job.loaded.dense_bytes,
            row_growth=1.0 if job.needs is None else job.needs.row_growth,
            loading_s=self.loading_s,
            saving_s=self.saving_s,
        )

    def _iterations_left(self) -> float:
        """Until its target, by its loss curve, or its last epoch; `stop.patience` may end it sooner."""
        pace, history = self.machine.spec.pace, self.machine.history
        stop = self.machine.spec.stop
        if self._expected_end is None or self._expected_end[0] != len(history):
            self._expected_end = len(history), stop.expected_end(history, pace.objective_every)
        return stop.epochs_until(self._expected_end[1], self.machine.epochs) * pace.steps_per_epoch


def pace_of(config: JobConfig, num_samples: int) -> BoundedStaleness:
    """Return how workers are tied together."""
    steps = 1 if config.staleness is None else num_steps(num_samples, config.mini_batch)
    return BoundedStaleness(steps, config.staleness, config.stop.max_epochs, config.objective.every)


def stop_rule(config: JobConfig) -> JobStop:
    """Return when a job is over."""
    stop = config.stop
    return JobStop(stop.max_epochs, stop.monitor, stop.mode, stop.target, stop.patience, stop.min_delta)


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
