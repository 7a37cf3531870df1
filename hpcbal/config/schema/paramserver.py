"""Every key of a parameter-server job beyond those of all runs: `ParamServerConfig` and its sections."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, Strict, model_validator

from hpcbal.config.schema.run import (
    MOST_BYTES,
    Bytes,
    Count,
    DatasetConfig,
    RunConfig,
    Seconds,
)
from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    COUNT_ALLOWED,
    COUNT_OR_NULL_ALLOWED,
    IMPORT_ALLOWED,
    MOST,
    ImportPath,
    Section,
    key,
    parse_bytes,
    wrong,
)
from hpcbal.events.history import shows_more_better

AUTO_OR_COUNT_ALLOWED = "auto or a whole number, 1 or more"
CONSISTENCY_ALLOWED = "sync, async, or {stale: k} with k a whole number, 1 or more"

AutoCount = Count | Literal["auto"]
EXECUTORS_ALLOWED = "all or a whole number, 2 or more"
AllOrExecutors = Annotated[int, Field(ge=2, le=MOST)] | Literal["all"]


def parse_rate(value: Any) -> Any:
    """Bytes per second: a number, or text such as 100MB/s."""
    if isinstance(value, str) and value.endswith("/s"):
        return parse_bytes(value.removesuffix("/s").rstrip())
    return value if isinstance(value, int | float) and not isinstance(value, bool) else parse_bytes(value)


class StaleConfig(Section):
    """Bounded staleness."""

    stale: int = key(..., "Steps that a worker may be ahead of the slowest one.", COUNT_ALLOWED, ge=1)


class PsStopConfig(Section):
    """When the job has converged; it ends with the first rule that applies."""

    max_epochs: int = key(10, "Most epochs.", COUNT_ALLOWED, ge=1)
    monitor: str | None = key(
        None,
        "The metric of the app that the rules below watch; null: its first one.",
        "null or the name of a metric of the app",
        min_length=1,
    )
    mode: Literal["auto", "min", "max"] = key(
        "auto", "Whether a lower or a higher value is better; auto: by the metric's name.", "auto, min, max"
    )
    target: float | None = key(None, "Stop at this value or a better one.", "null or a number")
    patience: int | None = key(
        None, "Stop after this many objectives without improvement.", COUNT_OR_NULL_ALLOWED, ge=1
    )
    min_delta: float = key(
        0.0, "Smallest change that counts as an improvement.", "a number, 0 or more", ge=0.0
    )

    @property
    def watched(self) -> str | None:
        """The metric that the rules watch; None: the first one of the app."""
        return self.monitor

    @property
    def resolved_mode(self) -> Literal["min", "max"]:
        """`mode`, with auto resolved by the name of the metric."""
        if self.mode == "auto":
            return "max" if self.monitor is not None and shows_more_better(self.monitor) else "min"
        return self.mode


class ObjectiveConfig(Section):
    """When the objective is computed."""

    every: int = key(
        1, "Epochs from one objective to the next; the last epoch always has one.", COUNT_ALLOWED, ge=1
    )


class BlocksConfig(Section):
    """Into how many blocks data and parameters are cut; blocks are what moves between ranks."""

    data: AutoCount = key(
        "auto", "Blocks of samples; auto: several for each executor.", AUTO_OR_COUNT_ALLOWED
    )
    parameters: AutoCount = key(
        "auto", "Blocks of parameters; auto: several for each executor.", AUTO_OR_COUNT_ALLOWED
    )


class ExecutorChangeConfig(Section):
    """A change of the executors that the job may use."""

    after_epoch: int = key(..., "When it applies: after so many epochs.", COUNT_ALLOWED, ge=1)
    use: AllOrExecutors = key(
        ..., "How many executors the job then has: the first ones by rank.", EXECUTORS_ALLOWED
    )


class ExecutorsConfig(Section):
    """Which executors the job may use; the others stand by until they are given to it."""

    start: AllOrExecutors = key("all", "Executors that the job has at the start.", EXECUTORS_ALLOWED)
    schedule: Annotated[tuple[ExecutorChangeConfig, ...], Strict(False)] = key(
        (),
        "Changes during the job; a file named executors in the output directory wins over it.",
        "a list such as '[{after_epoch: 5, use: 4}, {after_epoch: 10, use: all}]'",
    )

    @model_validator(mode="after")
    def _check(self) -> ExecutorsConfig:
        for i, (one, other) in enumerate(itertools.pairwise(self.schedule)):
            if other.after_epoch <= one.after_epoch:
                raise wrong(
                    f"schedule.{i + 1}.after_epoch",
                    f"got {other.after_epoch} after {one.after_epoch}, allowed: ascending epochs",
                )
        return self


class TuneConfig(Section):
    """How the job configures itself ([PS] Sec. 3.3.1)."""

    enabled: bool = key(True, "Whether roles and shares may change during the job.", "true, false")
    min_gain: float = key(
        0.05,
        "Least predicted gain, as a share of the epoch time, for which the job is reconfigured.",
        "0 <= min_gain < 1",
        ge=0.0,
        lt=1.0,
    )
    warm_up: int = key(
        3, "Turns of each worker that are not measured, at the start and after a change.", "0 or more", ge=0
    )
    min_turns: int = key(5, "Measured turns of each worker that a decision needs.", COUNT_ALLOWED, ge=1)


class EmulatedMachineConfig(Section):
    """How fast something emulated computes, and how fast its link is in each direction."""

    count: Count = key(1, "So many of this kind, in order of rank.", COUNT_ALLOWED)
    speed: float = key(1.0, "Factor on the speed of computing.", "a number above 0", gt=0.0)
    bandwidth: Annotated[float | None, BeforeValidator(parse_rate)] = key(
        None,
        "Bytes per second in each direction, shared by all peers; null: not limited.",
        "null, bytes per second above 0, or text such as 100MB/s",
        gt=0.0,
        le=MOST_BYTES,
    )


M = TypeVar("M", bound=EmulatedMachineConfig)


def machine_at(machines: Sequence[M], index: int) -> M | None:
    """The emulated machine with this number, from 0; they repeat from the first. None: there are none."""
    kinds = [machine for machine in machines for _ in range(machine.count)]
    return kinds[index % len(kinds)] if kinds else None


class PsMachineConfig(EmulatedMachineConfig):
    """An emulated executor."""

    seconds_per_sample: Seconds | None = key(
        None,
        "Time to compute one sample at speed 1; null: as long as it takes here.",
        "null or seconds above 0",
        gt=0.0,
    )

    @model_validator(mode="after")
    def _check(self) -> PsMachineConfig:
        if self.speed != 1.0 and self.seconds_per_sample is None:
            raise wrong(
                "speed",
                f"got {self.speed} without seconds_per_sample; give seconds_per_sample, the time of a sample "
                "at speed 1",
            )
        return self


class PsJobConfig(Section):
    """The keys of one parameter-server job."""

    app: ImportPath = key(..., "Class that computes: a subclass of hpcbal.paramserver.App.", IMPORT_ALLOWED)
    args: Mapping[str, Any] = key({}, "Arguments of the app.", ARGS_ALLOWED)
    data: DatasetConfig = key(..., "Where the samples come from.", "keys of data: dataset, args")
    mini_batch: int = key(
        ...,
        "Samples of a step over all workers (sync, stale), or of one turn of one worker (async).",
        COUNT_ALLOWED,
        ge=1,
    )
    consistency: Literal["sync", "async"] | StaleConfig = key(
        "sync",
        "sync: every step sees all updates of the steps before; stale: of all but the last k steps; "
        "async: workers run freely.",
        CONSISTENCY_ALLOWED,
    )
    stop: PsStopConfig = key(
        None, "When the job ends.", "keys of stop", default_factory=PsStopConfig, may_change=True
    )
    objective: ObjectiveConfig = key(
        None,
        "When the objective is computed.",
        "keys of objective",
        default_factory=ObjectiveConfig,
        may_change=True,
    )
    blocks: BlocksConfig = key(None, "Sizes of blocks.", "keys of blocks", default_factory=BlocksConfig)

    @property
    def staleness(self) -> int | None:
        """Steps that a worker may be ahead; None: any number, within an epoch (async)."""
        if isinstance(self.consistency, StaleConfig):
            return self.consistency.stale
        return 0 if self.consistency == "sync" else None


class ParamServerConfig(PsJobConfig, RunConfig):
    """A job on parameter servers: frozen, picklable."""

    kind: Literal["paramserver"] = key("paramserver", "Kind of the run.", "paramserver")
    workers: AutoCount = key(
        "auto", "Executors that compute at the start.", AUTO_OR_COUNT_ALLOWED, may_change=True
    )
    servers: AutoCount = key(
        "auto", "Executors that hold parameters at the start.", AUTO_OR_COUNT_ALLOWED, may_change=True
    )
    memory_per_rank: Bytes | None = key(
        None,
        "Most memory for blocks, messages and caches of an executor; null: not limited.",
        "null, bytes as a whole number above 0, or text such as 2GiB",
        gt=0,
        le=MOST_BYTES,
        may_change=True,
    )
    executors: ExecutorsConfig = key(
        None, "Executors that come and go.", "keys of executors", default_factory=ExecutorsConfig
    )
    tune: TuneConfig = key(
        None, "How the job configures itself.", "keys of tune", default_factory=TuneConfig, may_change=True
    )
    links: Literal["auto", "shared", "in_turn"] = key(
        "auto",
        "What predictions take links for: messages share a link, or it carries one after the other; auto: "
        "in_turn if machines have a bandwidth, which emulates such links, otherwise shared, as TCP does.",
        "auto, shared, in_turn",
        may_change=True,
    )
    machines: Annotated[tuple[PsMachineConfig, ...], Strict(False)] = key(
        (),
        "Emulated executors, to try a job on fewer cores; repeated from the first; empty: real ones.",
        "a list of machines such as '{count: 2, bandwidth: 10MB/s, seconds_per_sample: 0.001}'",
        may_change=True,
    )

    @model_validator(mode="after")
    def _check_executors(self) -> ParamServerConfig:
        fewest = sum(1 if count == "auto" else count for count in (self.workers, self.servers))
        if self.executors.start != "all" and self.executors.start < fewest:
            raise wrong(
                "executors.start",
                f"got {self.executors.start}, allowed: {fewest} or more, for workers: {self.workers} and "
                f"servers: {self.servers}",
            )
        return self

    @model_validator(mode="after")
    def _check_links(self) -> ParamServerConfig:
        if self.links == "shared" and any(machine.bandwidth for machine in self.machines):
            raise wrong(
                "links",
                "got shared with machines that have a bandwidth, allowed: auto, in_turn, because emulated "
                "links carry one message after the other; hpcbal forecast --links shared predicts others",
            )
        return self

    @property
    def jobs_by_name(self) -> Mapping[str, ParamServerConfig]:
        """The one job of the run."""
        return {self.name: self}

    @property
    def computed_by(self) -> str:
        return "emulated" if self.machines else "real"

    @property
    def arrives_s(self) -> float:
        """When the job is submitted, after the start of the run: at once."""
        return 0.0

    @property
    def link_model(self) -> Literal["shared", "in_turn"]:
        """The model of links for predictions of this job."""
        if self.links != "auto":
            return self.links
        return "in_turn" if any(machine.bandwidth for machine in self.machines) else "shared"

    def machine_of(self, executor: int) -> PsMachineConfig | None:
        """The emulated machine of an executor, counted from 0; None if executors are real."""
        return machine_at(self.machines, executor)
