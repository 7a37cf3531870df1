"""Every key of many parameter-server jobs beyond those of all runs: `JobsConfig` and its sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from hpcbal.config.schema.dnn import SEED_ALLOWED
from hpcbal.config.schema.paramserver import EmulatedMachineConfig, PsJobConfig, machine_at, parse_rate
from hpcbal.config.schema.run import MOST_BYTES, Bytes, RunConfig, Seconds
from hpcbal.config.schema.section import (
    COUNT_ALLOWED,
    NAME_ALLOWED,
    DirectoryName,
    Section,
    key,
    not_empty,
    wrong,
)

ARRIVES_ALLOWED = "seconds, 0 or more, or 'HH:MM:SS'"
TIME_ALLOWED = "null or seconds above 0"
_JobNames = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], Strict(False), AfterValidator(not_empty)
]


class SubmissionConfig(Section):
    """Keys of one of many jobs for the whole run, beside the keys of the job itself."""

    name: DirectoryName = key(..., "Unique name, and its directory in the output.", NAME_ALLOWED)
    arrives_s: Seconds = key(
        0.0,
        "When the job is submitted, after the start of the run.",
        ARRIVES_ALLOWED,
        ge=0.0,
        may_change=True,
    )
    seed: int | None = key(
        None,
        "Seed of its first values and random draws; null: the run's seed.",
        SEED_ALLOWED,
        ge=0,
        lt=2**32,
    )
    seconds_per_sample: Seconds | None = key(
        None,
        "On emulated machines: time to compute one sample at speed 1; null: as long as it takes here.",
        TIME_ALLOWED,
        gt=0.0,
        may_change=True,
    )


class SharedJobConfig(PsJobConfig, SubmissionConfig):
    """One of many parameter-server jobs on the same machines."""

    sweep_keys: ClassVar[tuple[str, ...]] = ("grid", "zip", "search")

    consistency: Literal["sync"] = key(
        "sync",
        "Every step sees all updates of the steps before.",
        "sync; a group of jobs computes and talks in turns, so the workers of each take their steps together",
    )

    @property
    def memory_per_rank(self) -> None:
        """Most memory of an executor: `memory_per_node` of the run limits all jobs together instead."""
        return None


class FixedGroupConfig(Section):
    """Jobs that share machines, and how many machines they get."""

    jobs: _JobNames = key(..., "Names of the jobs.", "a list of at least one name of a job")
    machines: int = key(..., "Machines of the group.", COUNT_ALLOWED, ge=1)


class JobsScheduleConfig(Section):
    """Which jobs share which machines, and how they take turns there ([PS] Sec. 4.3)."""

    paradigm: Literal["harmony", "isolated", "naive"] = key(
        "harmony",
        "harmony: groups of jobs that fill each other's gaps, which compute and talk in turns; "
        "isolated: each job has its own machines; naive: jobs share machines and do not take turns.",
        "harmony, isolated, naive",
    )
    min_gain: float = key(
        0.05,
        "Least predicted gain in use of cores and network, as a share, for which jobs are grouped anew.",
        "0 <= min_gain < 1",
        ge=0.0,
        lt=1.0,
    )
    warm_up: int = key(
        1,
        "Iterations of a job that are not measured, each time it starts or moves.",
        "a whole number, 0 or more",
        ge=0,
    )
    profile_iterations: int = key(
        2,
        "Measured iterations of a job before it is grouped by them; one of a minute suffices.",
        COUNT_ALLOWED,
        ge=1,
    )
    groups: Annotated[tuple[FixedGroupConfig, ...], Strict(False), AfterValidator(not_empty)] | None = key(
        None,
        "For naive: which jobs share how many machines; null: chosen at random.",
        "null or a list of at least one group such as '{jobs: [a, b], machines: 4}'",
    )

    def groups_problem(self, num_machines: int) -> str | None:
        """Why fixed groups do not fit a run with so many machines; None: they do, or there are none."""
        wanted = sum(group.machines for group in self.groups or ())
        if wanted <= num_machines:
            return None
        return (
            f"schedule.groups: got groups of {wanted} machines, but the run has {num_machines}; lower their "
            "machines, or start more ranks"
        )

    @property
    def takes_turns_at_links(self) -> bool:
        """Whether jobs pull and push in turn, each on all its machines at once."""
        return self.paradigm == "harmony"

    @model_validator(mode="after")
    def _check(self) -> JobsScheduleConfig:
        if self.groups is None:
            return self
        if self.paradigm != "naive":
            raise wrong(
                "groups",
                f"got groups with paradigm {self.paradigm}, which forms its own, allowed: null; or set "
                "paradigm to naive",
            )
        group_of: dict[str, int] = {}
        for index, group in enumerate(self.groups):
            for place, name in enumerate(group.jobs):
                if name in group_of:
                    raise wrong(
                        f"groups.{index}.jobs.{place}",
                        f"got {name!r}, which is in groups.{group_of[name]} already, allowed: each job once",
                    )
                group_of[name] = index
        return self


class JobsMachineConfig(EmulatedMachineConfig):
    """An emulated machine: how fast it computes, and how fast its link is in each direction."""

    disk: Annotated[float | None, BeforeValidator(parse_rate)] = key(
        None,
        "Bytes per second of its local disk, for all jobs together; null: not limited.",
        "null, bytes per second above 0, or text such as 100MB/s",
        gt=0.0,
        le=MOST_BYTES,
    )


class SpillConfig(Section):
    """Samples that lie on node-local disk until their turn ([PS] Sec. 4.3.3)."""

    alpha: Annotated[float, Field(ge=0.0, le=1.0)] | Literal["auto"] = key(
        "auto",
        "Share of its data blocks that every job has on disk; auto: of each job as many as memory_per_node "
        "asks for.",
        "auto or a number from 0 to 1",
    )
    directory: str | None = key(
        None,
        "Directory on node-local disk; null: that of SLURM_TMPDIR, TMPDIR or the system.",
        "null or the path of a directory that exists on every node",
        min_length=1,
    )

    @property
    def is_on(self) -> bool:
        """Whether any samples may be on disk."""
        return self.alpha != 0.0

    @property
    def fixed_alpha(self) -> float | None:
        """The share on disk; None: as large a share as memory asks for."""
        return None if self.alpha == "auto" else self.alpha


class JobsConfig(RunConfig):
    """Many parameter-server jobs on the same machines: frozen, picklable."""

    file_only_keys: ClassVar[tuple[str, ...]] = ("defaults", "sweeps")

    kind: Literal["jobs"] = key("jobs", "Kind of the run.", "jobs")
    jobs: Annotated[tuple[SharedJobConfig, ...], Strict(False), AfterValidator(not_empty)] = key(
        ..., "The jobs to train.", "a list of at least one job"
    )
    schedule: JobsScheduleConfig = key(
        None,
        "Which jobs share machines.",
        "keys of schedule",
        default_factory=JobsScheduleConfig,
        may_change=True,
    )
    memory_per_node: Bytes | None = key(
        None,
        "Most memory for blocks, messages and caches of all jobs on a machine; null: not limited.",
        "null, bytes as a whole number above 0, or text such as 2GiB",
        gt=0,
        le=MOST_BYTES,
        may_change=True,
    )
    spill: SpillConfig = key(
        None,
        "What lies on disk for want of memory.",
        "keys of spill",
        default_factory=SpillConfig,
        may_change=True,
    )
    machines: Annotated[tuple[JobsMachineConfig, ...], Strict(False)] = key(
        (),
        "Emulated machines, to try many jobs on fewer cores; repeated from the first; empty: real ones.",
        "a list of machines such as '{count: 2, speed: 0.5, bandwidth: 10MB/s}'",
        may_change=True,
    )

    @property
    def jobs_by_name(self) -> Mapping[str, SharedJobConfig]:
        """The jobs of the run."""
        return {job.name: job for job in self.jobs}

    @property
    def computed_by(self) -> str:
        return "emulated" if self.machines else "real"

    def machine_of(self, machine: int) -> JobsMachineConfig | None:
        """The emulated machine with this number, counted from 0; None if machines are real."""
        return machine_at(self.machines, machine)

    def seed_of(self, job: SharedJobConfig) -> int:
        """The seed of a job: its own, or the run's."""
        return self.seed if job.seed is None else job.seed
